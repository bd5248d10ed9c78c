package client

import (
	"context"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// The calls of engines that bring their own keys (key scheme "engine").

// Present returns which blocks are offered: a bitmap for each layer group, in which bit i%8 of byte
// i/8 stands for m.Hashes[i]; nil if none is.
func (w *Worker) Present(ctx context.Context, m *connector.PresentRequest) [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unregistered {
		return nil
	}
	var groups [][]byte
	err := w.link.do(ctx, false, wire.OpPresent,
		func(b []byte) []byte { return wire.AppendPresent(b, m) },
		func(b []byte) (err error) {
			groups, err = wire.DecodePresence(b)
			return err
		})
	size := (len(m.Hashes) + 7) / 8
	if err != nil || slices.ContainsFunc(groups, func(bits []byte) bool { return len(bits) != size }) {
		return nil
	}
	return groups
}

// Fetch loads blocks into the slots of m's parts. It is reported by Poll under m.ID like a load; no
// other load of that id may be in flight. A part that may have any parent fails: this client also speaks with
// daemons that do not know the word.
func (w *Worker) Fetch(ctx context.Context, m *connector.KeyedMove) { w.move(ctx, wire.OpFetch, m) }

// Put saves the blocks in the slots of m's parts, which the engine keeps until Stored reports it
// under m.ID; no other save of that id may be in flight.
func (w *Worker) Put(ctx context.Context, m *connector.KeyedMove) { w.move(ctx, wire.OpPut, m) }

func (w *Worker) move(ctx context.Context, op wire.Op, m *connector.KeyedMove) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slots := make([]uint32, 0, m.Blocks())
	for i := range m.Parts {
		slots = append(slots, m.Parts[i].Slots...)
	}
	jobs := map[jobID]pendingJob{{m.ID, op == wire.OpPut}: {blocks: slots}}
	// A daemon of version 4 would take any parent for the root, and drop the record as another's.
	if w.unregistered || m.AnyParent() {
		w.fail(jobs)
		return
	}
	told := *m
	told.Wait = 0 // this client learns of the end by Poll
	w.startJobs(ctx, op, func(b []byte) []byte { return wire.AppendMove(b, &told) }, nil, jobs)
}

// Touch ends a request: what it used counts as used now.
func (w *Worker) Touch(ctx context.Context, m *connector.TouchRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unregistered {
		_ = w.link.do(ctx, false, wire.OpTouch, func(b []byte) []byte { return wire.AppendTouch(b, m) }, nil)
	}
}
