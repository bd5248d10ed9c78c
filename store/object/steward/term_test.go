package steward

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/object/format"
)

// A command that works for one term is told who the steward is. It makes a head again that names what is gone, and
// gives the lease up.
func TestOnce(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		saved := []format.ObjectID{a.mustSave(1), a.mustSave(2)}
		time.Sleep(20 * time.Minute)
		parts := w.list(format.PartPrefix)
		if len(parts) == 0 || len(w.list(format.HeadFile)) != 1 {
			t.Fatal("nothing was folded")
		}
		b := w.joined("b")
		var held *HeldError
		if err := b.steward.Once(b.ctx, nil); !errors.As(err, &held) || held.Node != "a" || held.Age > leaseFor {
			t.Errorf("beside a steward: %v", err)
		}
		a.stop()

		for _, p := range parts {
			w.delete(p.Name)
		}
		if err := b.steward.Once(b.ctx, func(ctx context.Context, term Term) error {
			return errors.Join(term.Holds(ctx), term.RemakeHead(ctx))
		}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{format.HeadFile, format.LeaseFile} {
			if left := w.list(name); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		}
		w.agree(saved, b, w.joined("c"))
		errWork := errors.New("it cannot be done")
		if err := b.steward.Once(b.ctx, func(context.Context, Term) error { return errWork }); !errors.Is(err, errWork) {
			t.Errorf("work that fails: %v", err)
		}
		if left := w.list(format.LeaseFile); len(left) != 0 {
			t.Errorf("left after work that failed: %v", left)
		}
	})
}
