package inflight

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"pgregory.net/rapid"
)

// model is the same as the tracker, recomputed from a plain list of requests.
type model struct {
	reuse bool
	reqs  map[uint64]*modelRequest
}

type modelRequest struct {
	Request
	prefill bool
	output  int
	heard   time.Time
}

func (m *model) load(rank int32) Rank {
	var l Rank
	held := map[connector.Key]bool{}
	for _, r := range m.reqs {
		if r.Rank != rank {
			continue
		}
		uncached := int64(max(r.PromptTokens-r.CachedTokens, 0))
		l.ActiveRequests++
		l.PromptTokens += int64(r.PromptTokens)
		l.UncachedTokens += uncached
		l.OutputTokens += int64(r.output)
		blocks := (r.PromptTokens + r.output + 15) / 16
		if m.reuse {
			for _, k := range r.Keys {
				if held[k] {
					blocks--
				}
				held[k] = true
			}
		}
		l.DecodeBlocks += int64(blocks)
		if r.prefill {
			l.QueuedRequests++
			l.QueuedTokens += uncached
		}
	}
	return l
}

func TestTrackerAgreesWithAPlainList(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		reuse := rapid.Bool().Draw(rt, "reuse")
		tr, c := newTracker(t, Options{AssumeKVReuse: reuse, TTL: 100 * time.Second}, 0, 1)
		m := &model{reuse: reuse, reqs: map[uint64]*modelRequest{}}
		id := rapid.Uint64Range(0, 7)
		known := func(q uint64) *modelRequest {
			r := m.reqs[q]
			if r != nil {
				r.heard = c.t
			}
			return r
		}
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				r := Request{ID: id.Draw(rt, "id"), Rank: int32(rapid.IntRange(0, 1).Draw(rt, "rank")), PromptTokens: rapid.IntRange(0, 100).Draw(rt, "prompt"),
					CachedTokens: rapid.IntRange(0, 100).Draw(rt, "cached")}
				r.Keys = keys(rapid.IntRange(0, 3).Draw(rt, "chain")*100, rapid.IntRange(0, r.PromptTokens/16).Draw(rt, "keys"))
				err := tr.Add(r)
				if (err == nil) != (m.reqs[r.ID] == nil) {
					rt.Fatalf("add %d: %v", r.ID, err)
				}
				if err == nil {
					m.reqs[r.ID] = &modelRequest{Request: r, prefill: true, heard: c.t}
				}
			},
			"prefill done": func(rt *rapid.T) {
				q := id.Draw(rt, "id")
				r := known(q)
				if tr.PrefillDone(q) != (r != nil) {
					rt.Fatal("known to one alone")
				}
				if r != nil {
					r.prefill = false
				}
			},
			"output": func(rt *rapid.T) {
				q, n := id.Draw(rt, "id"), rapid.IntRange(0, 40).Draw(rt, "tokens")
				r := known(q)
				tr.Output(q, n)
				if r != nil {
					r.prefill = false
					r.output += n
				}
			},
			"finish": func(rt *rapid.T) {
				q := id.Draw(rt, "id")
				if tr.Finish(q) != (m.reqs[q] != nil) {
					rt.Fatal("known to one alone")
				}
				delete(m.reqs, q)
			},
			"time passes": func(rt *rapid.T) {
				c.advance(time.Duration(rapid.IntRange(0, 60).Draw(rt, "seconds")) * time.Second)
				for q, r := range m.reqs {
					if c.t.Sub(r.heard) >= 100*time.Second {
						delete(m.reqs, q)
					}
				}
			},
			"": func(rt *rapid.T) {
				for rank := range int32(2) {
					got, want := loadOf(tr, rank), m.load(rank)
					forgetRecent(&got)
					got.FrontTokens, got.FrontAge = 0, 0
					if got != want {
						rt.Fatalf("rank %d: %+v, want %+v", rank, got, want)
					}
				}
			},
		})
	})
}
