package discover

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/kvconn/kvconn/router/registry"
)

// change is a rank that the router has and that is to be another way.
type change struct {
	key string
	m   *member
	// next is the description without the router's own id; it drains all the same if it is leaving.
	next    registry.Rank
	leaving bool
}

// change makes the ranks that the router has what they are found as, and reports whether any changed. Ranks that share a node
// or bucket change together: the router takes no two URLs of one. A rank that it refuses stays as it was, but for URLs that the
// others are found with, and is tried again.
func (d *Discovery) change(wanted map[string]registry.Rank) (changed bool) {
	found := urlsOf(wanted)
	for _, group := range grouped(d.changes(wanted, found)) {
		err := d.update(group)
		if err == nil {
			changed = true
			continue
		}
		if len(group) > 1 {
			changed = d.moveURLs(group, found) || changed
		}
		for i := range group {
			if len(group) > 1 {
				err = d.update(group[i : i+1])
			}
			if c := &group[i]; err == nil {
				changed = true
			} else if !c.leaving {
				d.refuse(c.key, &c.next, err)
				changed = d.stay(c.m, c.next.Draining) || changed
			}
		}
	}
	return changed
}

// moveURLs changes nothing of a group but the URLs, so that a rank of it that is refused does not keep the others from theirs. It
// reports whether any changed.
func (d *Discovery) moveURLs(group []change, found urls) bool {
	moved, any := slices.Clone(group), false
	for i := range moved {
		c := &moved[i]
		next := c.m.given
		found.give(&next)
		any = any || next.NodeURL != c.m.given.NodeURL || next.BucketURL != c.m.given.BucketURL
		c.next, c.leaving = next, !c.m.leaving.IsZero()
	}
	if !any {
		return false
	}
	if d.opts.Ranks.Update(specsOf(moved)...) != nil {
		return false
	}
	for i := range moved {
		moved[i].m.given = moved[i].next
	}
	return true
}

// changes are those that are due, sorted by key.
func (d *Discovery) changes(wanted map[string]registry.Rank, found urls) (list []change) {
	for _, key := range slices.Sorted(maps.Keys(d.members)) {
		m := d.members[key]
		next, ok := wanted[key]
		switch _, there := d.opts.Ranks.Rank(m.id); {
		case !there: // somebody else removed it
			delete(d.members, key)
			continue
		case !ok: // it leaves, and must not keep the others from another URL
			next = m.given
			found.give(&next)
		}
		if same := reflect.DeepEqual(m.given, next); !same || ok && !m.leaving.IsZero() {
			list = append(list, change{key, m, next, !ok})
		} else if ok {
			delete(d.refused, key)
		}
	}
	return list
}

// update gives the router the changes of a group: all or none.
func (d *Discovery) update(group []change) error {
	if err := d.opts.Ranks.Update(specsOf(group)...); err != nil {
		return err
	}
	for i := range group {
		c := &group[i]
		c.m.given = c.next
		if !c.leaving {
			c.m.leaving = time.Time{}
			delete(d.refused, c.key)
		}
	}
	return nil
}

// specsOf are the ranks of a group as they are to be.
func specsOf(group []change) []registry.Rank {
	specs := make([]registry.Rank, len(group))
	for i := range group {
		c := &group[i]
		specs[i] = c.next
		specs[i].ID, specs[i].Draining = c.m.id, c.next.Draining || c.leaving
	}
	return specs
}

// stay leaves a rank that was refused as it was, but for whether it gets requests. It reports whether that changed.
func (d *Discovery) stay(m *member, draining bool) bool {
	if m.leaving.IsZero() && m.given.Draining == draining {
		return false
	}
	spec := m.given
	spec.ID, spec.Draining = m.id, draining
	if d.opts.Ranks.Update(spec) != nil {
		return false // it is tried again
	}
	m.given.Draining, m.leaving = draining, time.Time{}
	return true
}

// store is what ranks of a model share: a node, or a bucket.
type store struct {
	bucket    bool
	id, model string
}

func storesOf(r *registry.Rank) (node, bucket store) {
	return store{false, r.Node, r.Model}, store{true, r.Bucket, r.Model}
}

// urls are those that ranks are found with, empty where they are found with several.
type urls map[store]string

func urlsOf(wanted map[string]registry.Rank) urls {
	u := make(urls)
	note := func(s store, url string) {
		if url == "" {
			return
		}
		if other, known := u[s]; known && other != url {
			url = ""
		}
		u[s] = url
	}
	for _, r := range wanted {
		node, bucket := storesOf(&r)
		note(node, r.NodeURL)
		note(bucket, r.BucketURL)
	}
	return u
}

// give changes a rank's URLs to those that others of its node and bucket are found with.
func (u urls) give(r *registry.Rank) {
	node, bucket := storesOf(r)
	if url := u[node]; url != "" && node.id != "" {
		r.NodeURL = url
	}
	if url := u[bucket]; url != "" && bucket.id != "" {
		r.BucketURL = url
	}
}

// grouped joins changes of ranks that shared a node or bucket, or will.
func grouped(list []change) (groups [][]change) {
	of := make([]int, len(list)) // a lower change of the same group, or itself
	root := func(i int) int {
		for of[i] != i {
			of[i] = of[of[i]]
			i = of[i]
		}
		return i
	}
	first := make(map[store]int)
	for i := range list {
		of[i] = i
		oldNode, oldBucket := storesOf(&list[i].m.given)
		node, bucket := storesOf(&list[i].next)
		for _, s := range []store{oldNode, oldBucket, node, bucket} {
			if s.id == "" {
				continue
			}
			if at, shared := first[s]; shared {
				a, b := root(at), root(i)
				of[max(a, b)] = min(a, b)
			} else {
				first[s] = i
			}
		}
	}
	at := make(map[int]int) // groups by root
	for i := range list {
		r := root(i)
		if _, ok := at[r]; !ok {
			at[r] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[r]] = append(groups[at[r]], list[i])
	}
	return groups
}
