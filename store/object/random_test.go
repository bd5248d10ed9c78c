package object

import (
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
)

// Whatever the bucket does, each write and read ends, with the right bytes or an error that has a type, and once
// the bucket works again nodes find and read what was written, an hour later also what damaged answers made them take
// for lost.
func TestNodesUnderRandomFaults(t *testing.T) {
	rng := seed.Random(t, 0)
	effects := []s3proxy.Effect{
		{Status: 500, Code: "InternalError"}, {Status: 503, Code: "SlowDown"}, {Status: 403, Code: "AccessDenied"}, {Page: 502}, {Reset: true},
		{Lost: true}, {Delay: 100 * time.Millisecond}, {Delay: 20 * time.Second}, {Stall: 2 * time.Second},
	}
	kinds := []s3proxy.Kind{s3proxy.Get, s3proxy.Put, s3proxy.List, s3proxy.Any}
	damage := []s3proxy.Effect{{Cut: 1000}, {Flip: 3}}
	inCloud(t, func(t *testing.T, c *cloud) {
		nodes := []*node{c.open(nil), c.open(nil)}
		for _, n := range nodes {
			n.ready()
		}
		for range 60 {
			n := nodes[rng.IntN(2)]
			if rng.IntN(3) == 0 {
				k, do := kinds[rng.IntN(len(kinds))], effects[rng.IntN(len(effects))]
				if rng.IntN(4) == 0 {
					k, do = s3proxy.Get, damage[rng.IntN(len(damage))]
				}
				c.proxy.Play(s3proxy.Clause{On: k, Prob: 0.3 + rng.Float64()/2, Seed: rng.Uint64(), Do: do})
			} else {
				c.proxy.Stop()
			}
			records, keys := n.chain(rng.IntN(8), 1+rng.IntN(12))
			switch rng.IntN(3) {
			case 0:
				check(t, n.write(records...))
			case 1:
				check(t, n.read(records...))
			default:
				blocks, lease := n.Lookup(n.ns, shardZero, keys, time.Minute)
				check(t, n.read(records[:blocks]...))
				n.Release(lease)
			}
			time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
		}
		c.proxy.Stop()
		time.Sleep(forgiveAfter + 3*time.Minute)
		for chain := range 8 {
			records, keys := nodes[0].chain(chain, 12)
			nodes[0].until("nothing can be written", func() bool {
				for _, err := range nodes[0].write(records...) {
					if err != nil {
						return false
					}
				}
				return true
			})
			nodes[1].until("another node does not find it", func() bool { return nodes[1].prefix(keys) == 12 })
			nodes[0].mustRead(records...)
			nodes[1].mustRead(records...)
		}
	})
}

func check(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		if err != nil && !errors.Is(err, store.ErrIO) && !errors.Is(err, store.ErrBusy) && !errors.Is(err, store.ErrGone) &&
			!errors.Is(err, store.ErrTimeout) && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("an error of no type: %v", err)
		}
	}
}
