package route

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// Update replaces the descriptions of ranks: of all, or of none if one does not fit. If that changes where a rank's events
// come from or what they mean, its blocks and its requests in flight are forgotten. A new endpoint has to be found ready
// first. Ranks that share a node or bucket can change its URL only together. Errors wrap [ErrUnknownRank], or are those of
// [Router.Add]; then the ranks stay as they were.
func (r *Router) Update(specs ...registry.Rank) error {
	next := make([]registry.Rank, len(specs))
	for i := range specs {
		next[i] = specs[i]
		next[i].EnsureDefaults()
		if err := next[i].Validate(); err != nil {
			return err
		}
	}
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	kept, replaced, err := r.checkUpdate(next)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	for i := range replaced { // first: what it shares with others may change its URL
		r.remove(replaced[i].state)
	}
	if err := r.move(kept); err != nil {
		_ = r.addAgain(replaced, func(c *change) registry.Rank { return c.old })
		return err
	}
	if err := r.addAgain(replaced, func(c *change) registry.Rank { return c.next }); err != nil {
		for i := range replaced {
			r.drop(replaced[i].next.ID)
		}
		_ = r.addAgain(replaced, func(c *change) registry.Rank { return c.old })
		return err
	}
	return nil
}

// change is what becomes of a rank.
type change struct {
	state     *rankState
	old, next registry.Rank
	// disk and object say which of its stores it leaves.
	disk, object bool
}

// checkUpdate reports what keeps ranks from being changed, before anything is; else which of them keep their events and
// which have to be added again. The caller holds mu.
func (r *Router) checkUpdate(next []registry.Rank) (kept, replaced []change, err error) {
	specs := make(map[int32]*registry.Rank, len(next)) // as they are to be
	for i := range next {
		spec := &next[i]
		s := r.ranks[spec.ID]
		if s == nil {
			return nil, nil, fmt.Errorf("update rank %d: %w", spec.ID, ErrUnknownRank)
		}
		if specs[spec.ID] != nil {
			return nil, nil, fmt.Errorf("update rank %d: it is given twice", spec.ID)
		}
		specs[spec.ID] = spec
		old := s.spec.Load()
		c := change{state: s, old: *old, next: *spec, disk: !sameDisk(old, spec), object: !sameObject(old, spec)}
		if sameEvents(old, spec) {
			kept = append(kept, c)
		} else {
			c.disk, c.object = true, true
			replaced = append(replaced, c)
		}
	}
	all := make([]*registry.Rank, 0, len(r.ranks))
	for id, s := range r.ranks {
		if spec := specs[id]; spec != nil {
			all = append(all, spec)
		} else {
			all = append(all, s.spec.Load())
		}
	}
	for i := range next {
		for _, other := range all {
			if other.ID == next[i].ID {
				continue
			}
			if err := fit(&next[i], other); err != nil {
				return nil, nil, fmt.Errorf("update rank %d: %w", next[i].ID, err)
			}
		}
	}
	return kept, replaced, r.checkURLs(slices.Concat(kept, replaced))
}

// checkURLs reports the first rank whose node or bucket would have another URL or none, once all have left the stores that
// they leave. It finds what share will. The caller holds mu.
func (r *Router) checkURLs(changes []change) error {
	type store struct {
		tier prefix.Tier
		id   string
	}
	urls, known := make(map[sourceKey]string), make(map[store]string)
	note := func(key sourceKey, url string) { urls[key], known[store{key.tier, key.id}] = url, url }
	leave := make(map[*rankState]*change, len(changes))
	for i := range changes {
		leave[changes[i].state] = &changes[i]
	}
	for _, s := range r.ranks {
		c := leave[s]
		if s.disk != nil && (c == nil || !c.disk) {
			note(s.disk.sourceKey, s.disk.url)
		}
		if s.object != nil && (c == nil || !c.object) {
			note(s.object.sourceKey, s.object.url)
		}
	}
	check := func(key sourceKey, url string) error {
		theirs, shared := urls[key]
		switch {
		case key.id == "" || shared && (url == "" || url == theirs):
			return nil
		case shared:
			return otherURL(theirs, url)
		case url == "":
			url = known[store{key.tier, key.id}]
		}
		if url == "" {
			return errNoURL
		}
		note(key, url)
		return nil
	}
	for i := range changes {
		c := &changes[i]
		if c.disk {
			if err := check(keyOf(prefix.Disk, c.next.Node, &c.next), c.next.NodeURL); err != nil {
				return fmt.Errorf("update rank %d: node %s: %w", c.next.ID, c.next.Node, err)
			}
		}
		if c.object {
			if err := check(keyOf(prefix.Object, c.next.Bucket, &c.next), c.next.BucketURL); err != nil {
				return fmt.Errorf("update rank %d: bucket %s: %w", c.next.ID, c.next.Bucket, err)
			}
		}
	}
	return nil
}

// move changes ranks that keep their events, blocks and requests: all, or none if there is an error. The caller holds admin.
func (r *Router) move(changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	r.mu.Lock()
	ended, err := r.moveStores(changes)
	r.mu.Unlock()
	for _, from := range ended {
		from.end(r.index)
	}
	return err
}

// moveStores is move. It returns the stores that nobody uses any more. The caller holds mu.
func (r *Router) moveStores(changes []change) (ended []*source, err error) {
	to := make(map[*rankState]*rankState, len(changes))
	var left, taken []*source
	for i := range changes {
		c := &changes[i]
		s := c.state.withSpec(&c.next)
		if c.disk {
			left, s.disk = append(left, s.disk), nil
		}
		if c.object {
			left, s.object = append(left, s.object), nil
		}
		to[c.state] = s
	}
	ended = r.leave(left)
	for i := range changes {
		c := &changes[i]
		s := to[c.state]
		if c.disk && err == nil {
			s.disk, err = r.share(prefix.Disk, c.next.Node, c.next.NodeURL, &c.next, s.pool)
			taken = append(taken, s.disk)
		}
		if c.object && err == nil {
			s.object, err = r.share(prefix.Object, c.next.Bucket, c.next.BucketURL, &c.next, s.pool)
			taken = append(taken, s.object)
		}
	}
	if err != nil { // back to where they were: what was left has not ended yet
		ended = r.leave(taken)
		for _, from := range left {
			if from != nil {
				from.users++
				r.sources[from.sourceKey] = from
			}
		}
		return ended, err
	}
	pools := make(map[*pool]bool)
	for i := range changes {
		c := &changes[i]
		s := to[c.state]
		if c.old.Endpoint != c.next.Endpoint && !r.opts.AssumeReady {
			s.setReady(false, "the endpoint is new and not checked yet")
		}
		r.ranks[s.id] = s
		pools[s.pool] = true
	}
	for p := range pools {
		err = errors.Join(err, r.refresh(p))
	}
	r.flights.move(to) // decisions use the new ones from here on
	return ended, err
}

// addAgain adds ranks that were removed, with one of their descriptions. Where the endpoint is the same, it is as ready as it
// was. The caller holds admin.
func (r *Router) addAgain(changes []change, spec func(*change) registry.Rank) error {
	specs := make([]registry.Rank, len(changes))
	for i := range changes {
		specs[i] = spec(&changes[i])
	}
	err := r.add(specs)
	if err != nil {
		r.opts.Logger.Error("ranks cannot be added again while they are changed", "error", err, "remedy", "GET /v1/ranks shows those that are left; add the others")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if s := r.ranks[c.next.ID]; s != nil && specs[i].Endpoint == c.old.Endpoint {
			s.setReady(c.state.ready.Load(), *c.state.why.Load())
		}
	}
	return err
}

// drop removes a rank if it is there. The caller holds admin.
func (r *Router) drop(id int32) {
	r.mu.Lock()
	s := r.ranks[id]
	r.mu.Unlock()
	if s != nil {
		r.remove(s)
	}
}
