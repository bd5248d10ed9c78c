package worker

import (
	"context"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// SaveLater notes the save of a plan, which Poll reports as m.ID, and returns true: the copies are made by a goroutine of the
// worker, save after save. It does so for memory of a device, whose engine has only queued what it computes; for other memory
// it does nothing and returns false. Blocks for which there is no memory are dropped, so that the engine gets its own
// back soon. It keeps nothing of m.
func (w *Worker) SaveLater(ctx context.Context, m *connector.SaveRequest) (bool, error) {
	mem := w.memory()
	if mem == nil || !mem.shape.Later {
		return false, nil
	}
	call := mem.calls.Add(1) // first: a call that is refused counts, too
	plan, err := w.parse(m.Metadata)
	if err != nil {
		return false, err
	}
	p := &put{mem: mem, call: call, revocable: true, revoked: m.Revoked, deadline: time.Now().Add(w.opts.LoadTimeout), ctx: ctx}
	p.report.ID = strings.Clone(m.ID)
	for _, s := range planned(mem, plan.Saves) {
		if s.group.writes {
			s.first = p.blocks
			p.stretches = append(p.stretches, s)
			p.blocks += len(s.blocks)
		}
	}
	return true, w.queue(p)
}
