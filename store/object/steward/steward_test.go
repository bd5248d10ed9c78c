package steward

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/object/format"
)

// What one node saves all nodes know within seconds, and it lies in one log.
func TestNewsReachAllNodes(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		time.Sleep(time.Minute)
		if n := len(w.stewards()); n != 1 {
			t.Fatalf("%d stewards", n)
		}
		var ids []format.ObjectID
		for range 20 {
			for _, n := range []*node{a, b, c} {
				ids = append(ids, n.mustSave(3))
			}
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Minute)
		w.agree(ids, a, b, c, w.joined("d"))
		if left := w.list(format.InPrefix); len(left) > 0 {
			t.Errorf("%d lists of writers are left", len(left))
		}
		if s := a.outbox.Stats(); s.Waiting != 0 || s.Lists == 0 || s.Again != 0 || s.Writers != 3 {
			t.Errorf("%+v", s)
		}
		// Folded, the log and its parts go after an hour.
		time.Sleep(3 * time.Hour)
		if logs, parts := w.list(format.LogPrefix), w.list(format.PartPrefix); len(logs) > 0 || len(parts) != 1 {
			t.Errorf("%d objects of the log and %d parts are left", len(logs), len(parts))
		}
		w.agree(ids, a, b, c, w.joined("e"))
	})
}

// When the steward dies another takes over after a minute or so, where lists wait.
func TestStewardDies(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		b := w.start("b")
		time.Sleep(10 * time.Second)
		a.transport.at.Store(1)
		first := b.mustSave(1)
		time.Sleep(2 * time.Minute)
		if s := w.stewards(); len(s) != 1 || s[0] != b {
			t.Errorf("%d stewards", len(s))
		}
		w.agree([]format.ObjectID{first}, b)
	})
}
