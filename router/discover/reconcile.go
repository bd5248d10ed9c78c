package discover

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// noID is the id of a rank that the router is to number.
const noID = -1

// keyOf tells the ranks of a source apart: by id if it was given, else by endpoint and data-parallel rank. What all ranks
// of a model have in common cannot be changed rank by rank: with another block size it is another rank.
func keyOf(r *registry.Rank) string {
	pool := fmt.Sprintf("%s %s %d", r.Model, r.Engine, r.BlockSize)
	if r.ID != noID {
		return fmt.Sprintf("id %d %s", r.ID, pool)
	}
	return fmt.Sprintf("%s %d %s", r.Endpoint, r.DPRank, pool)
}

// member is a rank that was found and that the router has taken.
type member struct {
	id int32
	// given is the description as it was found last, without the router's own id.
	given registry.Rank
	// leaving is since when it is found no more; zero if it is.
	leaving time.Time
}

// reconcile makes the router's ranks those that are wanted.
func (d *Discovery) reconcile(now time.Time) {
	wanted := make(map[string]registry.Rank)
	for i := range d.sources {
		maps.Copy(wanted, d.sources[i].wanted)
	}
	for _, key := range slices.Sorted(maps.Keys(d.members)) {
		if _, ok := wanted[key]; !ok {
			d.leave(key, d.members[key], now)
		}
	}
	changed := d.change(wanted)
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if d.members[key] == nil {
			changed = d.join(key, wanted[key]) || changed
		}
	}
	maps.DeleteFunc(d.refused, func(key, _ string) bool { _, ok := wanted[key]; return !ok })
	d.count()
	if changed && d.opts.Changed != nil {
		d.opts.Changed()
	}
}

// leave lets a rank's requests end, then removes it.
func (d *Discovery) leave(key string, m *member, now time.Time) {
	info, ok := d.opts.Ranks.Rank(m.id)
	if !ok { // somebody else removed it
		delete(d.members, key)
		return
	}
	if m.leaving.IsZero() {
		m.leaving = now
		spec := m.given
		spec.ID, spec.Draining = m.id, true
		d.opts.Logger.Info("a rank is found no more: it gets no new requests", "rank", m.id, "endpoint", spec.Endpoint, "in_flight", info.Load.ActiveRequests)
		if err := d.opts.Ranks.Update(spec); err != nil {
			d.opts.Logger.Warn("a rank that leaves cannot be drained", "rank", m.id, "error", err, "remedy", "none is needed: it is removed soon")
		}
		if info, ok = d.opts.Ranks.Rank(m.id); !ok {
			delete(d.members, key)
			return
		}
	}
	if info.Load.ActiveRequests > 0 && now.Sub(m.leaving) < d.opts.LeaveTimeout {
		return
	}
	if _, err := d.opts.Ranks.Remove(m.id); err != nil && !errors.Is(err, route.ErrUnknownRank) {
		d.opts.Logger.Warn("a rank cannot be removed", "rank", m.id, "error", err, "remedy", "none is needed: it is tried again")
		return
	}
	delete(d.members, key)
}

// join adds a rank, and reports whether it did.
func (d *Discovery) join(key string, given registry.Rank) bool {
	spec := given
	if spec.ID == noID {
		spec.ID = d.freeID()
	}
	if err := d.opts.Ranks.Add(spec); err != nil {
		d.refuse(key, &given, err)
		return false
	}
	delete(d.refused, key)
	d.members[key] = &member{id: spec.ID, given: given}
	return true
}

// refuse notes why the router does not take a rank as it was found.
func (d *Discovery) refuse(key string, given *registry.Rank, err error) {
	if d.refused[key] != err.Error() {
		d.opts.Logger.Warn("a rank was found that the router cannot take", "endpoint", given.Endpoint, "model", given.Model, "error", err,
			"remedy", "correct its description; it is tried again and again, and if the router has it already, it stays as it was")
	}
	d.refused[key] = err.Error()
}

// freeID is an id that no rank has, and that none had lately: clients pin requests by ids.
func (d *Discovery) freeID() (id int32) {
	for {
		id = d.nextID
		if d.nextID++; d.nextID == math.MaxInt32 {
			d.nextID = firstID
		}
		if _, taken := d.opts.Ranks.Rank(id); !taken {
			return id
		}
	}
}

// count makes the figures those of now.
func (d *Discovery) count() {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.stats
	s.Ranks, s.Leaving, s.Failing, s.Down, s.Refused = 0, 0, 0, 0, len(d.refused)
	for _, m := range d.members {
		if m.leaving.IsZero() {
			s.Ranks++
		} else {
			s.Leaving++
		}
	}
	s.Why = []string{} // readers may have the old one
	now := time.Now()
	for i := range d.sources {
		if d.sources[i].down(now) {
			s.Down++
		}
		if err := d.sources[i].err; err != "" {
			s.Failing++
			s.Why = append(s.Why, d.opts.Sources[i].String()+": "+strings.ToValidUTF8(err, "?"))
		}
	}
}
