package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// keyed checks a move by the engine's own keys, and returns its stretches of the registered memory.
func (w *Worker) keyed(mem *memory, m *connector.KeyedMove) ([]stretch, error) {
	if err := w.CheckKeyed(); err != nil {
		return nil, err
	}
	if mem == nil {
		return nil, connector.ErrNotRegistered
	}
	stretches := make([]stretch, 0, min(len(m.Parts), m.Blocks()))
	slots := make([]uint64, 0, m.Blocks())
	for i := range m.Parts {
		p := &m.Parts[i]
		g := mem.group(p.Group)
		if g == nil {
			return nil, fmt.Errorf("%w: the rank has no blocks of group %d", connector.ErrBadRequest, p.Group)
		}
		if len(p.Hashes) == 0 {
			continue // nothing bounds their number
		}
		stretches = append(stretches, keyedStretch(g, p))
		for _, slot := range p.Slots {
			slots = append(slots, uint64(p.Group)<<32|uint64(slot))
		}
	}
	// Two blocks in one slot would be mixed.
	slices.Sort(slots)
	for i := 1; i < len(slots); i++ {
		if slots[i] == slots[i-1] {
			return nil, fmt.Errorf("%w: slot %d of group %d is named twice", connector.ErrBadRequest, uint32(slots[i]), slots[i]>>32)
		}
	}
	return stretches, nil
}

// CheckKeyed returns an error if the engine does not bring its own keys.
func (w *Worker) CheckKeyed() error {
	if s := w.opts.Manifest.KeyScheme; s != connector.KeySchemeEngine {
		return fmt.Errorf("%w: the namespace's key scheme is %q", connector.ErrBadRequest, s)
	}
	return nil
}

// present says of each block of a stretch whether this rank's shard of it is stored.
func (w *Worker) present(s *stretch) []bool {
	keys, at := make([]connector.Key, len(s.blocks)), make([]bool, len(s.blocks))
	for i := range keys {
		keys[i] = s.blocks[i].Key
	}
	w.opts.Cache.Tier().Present(w.opts.Namespace, s.group.shard, keys, at)
	return at
}

// Fetch starts the load of blocks by key, which Poll reports as m.ID. It keeps nothing of m.
func (w *Worker) Fetch(_ context.Context, m *connector.KeyedMove) error {
	_, err := w.fetch(m, w.opts.LoadTimeout, false)
	return err
}

// fetch starts a load by key. waited says that a call waits for its end.
func (w *Worker) fetch(m *connector.KeyedMove, timeout time.Duration, waited bool) (*load, error) {
	mem, call := w.call()
	stretches, err := w.keyed(mem, m)
	if err != nil {
		return nil, err
	}
	l := w.newLoad(mem, call, strings.Clone(m.ID), stretches, nil, timeout)
	l.apart = true
	if waited {
		l.good, l.over = make([]bool, len(l.done)), make(chan struct{})
	}
	w.mu.Lock()
	err = w.loads.admits(1, m.Blocks())
	switch {
	case err != nil:
	case w.mem != mem: // given back by another connection of the session
		err = connector.ErrNotRegistered
	case w.loads.has(m.ID):
		err = fmt.Errorf("%w: load %q is under way, or was not polled", connector.ErrBadRequest, m.ID)
	default:
		w.loads.put(l)
	}
	w.mu.Unlock()
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.start()
	return l, nil
}

// Put notes the save of blocks by key, which Poll reports as m.ID, and returns: the copies are made
// by a goroutine of the worker, save after save. It keeps nothing of m. A save for which there is no
// more room in the queue is reported as dropped.
func (w *Worker) Put(_ context.Context, m *connector.KeyedMove) error {
	p, err := w.newPut(m, w.opts.LoadTimeout)
	if err != nil {
		return err
	}
	return w.queue(p)
}

func (w *Worker) newPut(m *connector.KeyedMove, timeout time.Duration) (*put, error) {
	mem, call := w.call() // first: a call that is refused counts, too
	stretches, err := w.keyed(mem, m)
	// What is stored is found and evicted by its parent.
	if err == nil && m.AnyParent() {
		err = fmt.Errorf("%w: a save without a parent", connector.ErrBadRequest)
	}
	if err != nil {
		return nil, err
	}
	p := &put{
		ctx: context.Background(),
		mem: mem, call: call, stretches: stretches, blocks: m.Blocks(), patient: true,
		deadline: time.Now().Add(timeout),
	}
	p.report.ID = strings.Clone(m.ID)
	for i, first := 0, 0; i < len(stretches); i++ {
		stretches[i].first, stretches[i].scope = first, m.Scope.Digest()
		first += len(stretches[i].blocks)
	}
	return p, nil
}
