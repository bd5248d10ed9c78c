package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
)

// laterWorker is a rank that saves as on a device: Save returns before anything is copied, and blocks that get other content
// are taken back first. Now and then it lets its saves end.
type laterWorker struct {
	*client.Worker
	calls int
	// loads have ended and were not reported to the engine.
	loads []connector.FinishedLoad
	// saves are those that were not reported.
	saves map[string]bool
	// wrong is a report of another save.
	wrong error
}

var (
	_ engine.WorkerClient = (*laterWorker)(nil)
	_ engine.Reuser       = (*laterWorker)(nil)
)

func (w *laterWorker) Save(ctx context.Context, metadata []byte) (r connector.SaveResult) {
	w.calls++
	id := fmt.Sprint("save ", w.calls)
	w.saves[id] = true
	w.SaveLater(ctx, id, metadata)
	if w.calls%3 == 0 {
		w.wrong = errors.Join(w.wrong, w.settle(ctx))
	}
	return r
}

func (w *laterWorker) Reuse(blocks []uint32) {
	if len(blocks) > 0 {
		w.Revoke(blocks)
	}
}

func (w *laterWorker) Poll(ctx context.Context) []connector.FinishedLoad {
	w.poll(ctx)
	done := w.loads
	w.loads = nil
	return done
}

func (w *laterWorker) poll(ctx context.Context) {
	w.loads = append(w.loads, w.Worker.Poll(ctx)...)
	for _, s := range w.Stored() {
		if !w.saves[s.ID] {
			w.wrong = fmt.Errorf("save %q is reported, and was not under way", s.ID)
		}
		delete(w.saves, s.ID)
	}
}

// settle waits for the saves under way. It returns an error if a report was wrong or is missing.
func (w *laterWorker) settle(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); len(w.saves) > 0 && w.wrong == nil; time.Sleep(time.Millisecond) {
		w.poll(ctx)
		if time.Now().After(deadline) {
			return errors.New("saves were not reported")
		}
	}
	return w.wrong
}
