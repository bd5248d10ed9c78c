package byname

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// warmState returns a state of n ranks under load and a batch of requests that were seen before.
func warmState(n, requests int, explain bool) (*policy.State, []policy.Request) {
	s := policytest.Idle(n, 1<<20)
	for i := range s.Ranks {
		r := &s.Ranks[i]
		r.Load.ActiveRequests = i % 7
		r.Load.PromptTokens = int64(i * 7919 % 5000)
		r.Load.UncachedTokens, r.Load.QueuedTokens = r.Load.PromptTokens/2, r.Load.PromptTokens/4
		r.Load.RecentTokens, r.Load.DecodeBlocks = float64(r.Load.PromptTokens*10), r.Load.PromptTokens/16
		r.Speeds = policy.Speeds{PrefillTokens: 10000, DiskBytes: 3e9, ObjectBytes: 1e9, BytesPerToken: 1 << 17}
	}
	var reqs []policy.Request
	for i := range requests {
		r := policytest.Prompt(uint64(i), 1000+i*100, s, 0)
		for j := range r.Match {
			g := int32((i + j) % 5 * 100)
			r.Match[j] = policy.Match{GPU: g, Disk: 200, Usable: g + 300, LoadDisk: 200, LoadObject: 100}
		}
		r.Conversation, r.Content, r.Head = fmt.Sprint("c", i), fmt.Sprint("c", i), []uint32{uint32(i % 3)}
		r.FirstTurn, r.Explain = i%2 == 0, explain
		if i == requests-1 {
			r.Pin = 3
		}
		reqs = append(reqs, r)
	}
	return s, reqs
}

func TestDecisionsDoNotAllocate(t *testing.T) {
	for _, requests := range []int{1, 8} {
		for _, explain := range []bool{false, true} {
			s, reqs := warmState(1024, requests, explain)
			all, out := policytest.Pointers(reqs), policytest.Pointers(make([]policy.Decision, len(reqs)))
			for _, p := range withExact() {
				place := func() {
					if b, ok := p.(policy.Batcher); ok {
						b.PlaceAll(s, all, out)
						return
					}
					for i := range all {
						p.Place(s, all[i], out[i])
					}
				}
				place()
				place()
				if n := testing.AllocsPerRun(10, place); n != 0 {
					t.Errorf("%s: %v allocations for %d requests, scores asked for: %v", p.Name(), n, requests, explain)
				}
			}
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{8, 64, 1024} {
		s, reqs := warmState(n, 1, false)
		reqs[0].Pin = policy.NoPin
		var d policy.Decision
		for _, p := range everyPolicy() {
			b.Run(fmt.Sprintf("%s/%d", p.Name(), n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p.Place(s, &reqs[0], &d)
				}
			})
		}
	}
}
