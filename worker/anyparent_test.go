package worker

import (
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/host"
)

// Loads that know the parent, do not know it, or have it wrong ask for one record at the same time. Each gets what it
// gets alone.
func TestLoadsWithAndWithoutTheParentAtTheSameTime(t *testing.T) {
	for range 10 {
		saver, m, _ := newKeyedWorker(t, nil)
		m.fill(0, 30)
		m.fill(1, 31)
		mustPut(t, saver, keyedMove("a", part(1, 0, 1)))
		w := newWorker(t, saver.opts.Cache.Tier(), func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
		register(t, w, m) // nothing is in its memory yet
		var all sync.WaitGroup
		for slot, tc := range map[uint32]struct {
			parent    connector.Proof
			anyParent bool
			loads     bool
		}{
			4: {connector.Proof{}, true, true}, 5: {connector.Proof{1}, false, true}, 6: {connector.Proof{}, false, false},
			7: {connector.Proof{}, true, true}, 8: {connector.Proof{1}, false, true},
		} {
			m.fill(int(slot), 66)
			p := part(2, slot)
			p.Parent, p.AnyParent = tc.parent, tc.anyParent
			all.Go(func() {
				got, err := fetchWait(t.Context(), w, waiting(time.Minute, string(rune('a'+slot)), p))
				if err != nil || (got.Done[0][0] == 1) != tc.loads || m.holds(int(slot), 31) != tc.loads {
					t.Errorf("parent %x, any %t: %+v, %v", tc.parent[:1], tc.anyParent, got, err)
				}
			})
		}
		all.Wait()
		settle(t, w)
	}
}
