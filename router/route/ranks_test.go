package route

import (
	"errors"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
)

func TestRanksFitTogetherOrAreRefused(t *testing.T) {
	r := newRouter(t, 0, func(o *Options) { o.MaxRanks = 4 })
	first := rank(0)
	first.BlockSize = 16
	add(t, r, first, rank(1)) // one that does not say fits
	for name, c := range map[string]struct {
		change func(*registry.Rank)
		want   error
	}{
		"the same id":         {func(s *registry.Rank) { s.ID = 1 }, ErrRankExists},
		"another block size":  {func(s *registry.Rank) { s.BlockSize = 32 }, ErrMismatch},
		"an adapter's name":   {func(s *registry.Rank) { s.Model, s.Adapters = "n", []string{"m"} }, ErrMismatch},
		"a node of no URL":    {func(s *registry.Rank) { s.Node = "n" }, nil},
		"a negative capacity": {func(s *registry.Rank) { s.MaxActive = -1 }, nil},
		"a bad endpoint":      {func(s *registry.Rank) { s.Events = &registry.Events{Endpoint: "x"} }, nil},
	} {
		spec := rank(9)
		c.change(&spec)
		if err := r.Add(spec); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	add(t, r, rank(2))
	add(t, r, registry.Rank{ID: 3, Model: "n", Endpoint: "http://h", BlockSize: 32, Adapters: []string{"a"}})
	if err := r.Add(rank(4)); !errors.Is(err, ErrTooManyRanks) {
		t.Error(err)
	}
	if d := ask(t, r, Request{Request: policy.Request{Pin: policy.NoPin}, Model: "a"}); d.Rank != 3 || d.Model != "n" {
		t.Errorf("%+v", d)
	}
	if err := r.Route(t.Context(), &Request{}, new(Decision)); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("no model named of two: %v", err)
	}
	if n := r.index.Stats().Holders; n != 4 {
		t.Errorf("%d holders for 4 ranks", n)
	}
}

func TestUpdateKeepsWhatItCan(t *testing.T) {
	r := newRouter(t, 2, nil)
	req := free(prompt(1, 640))
	first := ask(t, r, req)
	spec := rank(int(first.Rank))
	spec.MaxActive, spec.DPMode, spec.DPRank = 5, registry.Internal, 0
	if err := r.Update(spec); err != nil {
		t.Fatal(err)
	}
	req.Pin = first.Rank
	if d := ask(t, r, req); d.Match.GPU != 640-16 || d.Header != "0" {
		t.Errorf("%+v", d)
	}
	spec.Draining = true
	if err := r.Update(spec); err != nil {
		t.Fatal(err)
	}
	if d := ask(t, r, req); d.Rank == first.Rank || d.PinMissed != policy.ReasonPinNotReady {
		t.Errorf("a draining rank was chosen: %+v", d)
	}
	spec.Draining, spec.HashDomain = false, "other"
	if err := r.Update(spec); err != nil {
		t.Fatal(err)
	}
	if d := ask(t, r, req); d.Rank != first.Rank || d.Match.GPU != 0 {
		t.Errorf("%+v", d)
	}
	if err := r.Update(rank(7)); !errors.Is(err, ErrUnknownRank) {
		t.Error(err)
	}
}

func TestARemovedRankTakesEverythingWithIt(t *testing.T) {
	r := newRouter(t, 1, nil)
	d := ask(t, r, free(prompt(1, 640)))
	if n, err := r.Remove(0); n != 1 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if r.PrefillDone(d.Handle) || r.Finish(d.Handle) {
		t.Error("a request of a removed rank is known")
	}
	if s := r.index.Stats(); s.Holders != 0 || s.Blocks != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := r.Remove(0); !errors.Is(err, ErrUnknownRank) {
		t.Error(err)
	}
}

// Decisions beside ranks that come and go are of ranks that are there, and nothing remains of them.
func TestDecisionsBesideChanges(t *testing.T) {
	for _, name := range []string{"cost", "published/load"} {
		r := of(t, name, 4, 0)
		r.SetReady(3, false, "test")
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for g := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					out, errs := routeAll(t, r, free(prompt(i%5+g, 320)), free(prompt(i%7+g, 160)))
					for at, d := range out {
						if errs[at] != nil || !d.Placed() && d.Reason != policy.ReasonFairShare || d.Rank == 3 {
							t.Errorf("%s: %+v, %v", name, d, errs[at])
						}
						r.PrefillDone(d.Handle)
						r.Finish(d.Handle)
					}
				}
			})
		}
		for range 50 {
			if _, err := r.Remove(2); err != nil {
				t.Error(err)
			}
			add(t, r, rank(2))
			r.SetReady(1, false, "test")
			r.Stats()
			r.Ranks()
			r.SetReady(1, true, "")
		}
		close(stop)
		wg.Wait()
		if s := r.Stats(); s.InFlight != 0 || len(r.flights.byID) != 0 {
			t.Errorf("%s: %d requests are in flight, %d are known", name, s.InFlight, len(r.flights.byID))
		}
	}
}

func TestEventsDecideWhereAPromptGoes(t *testing.T) {
	r := newRouter(t, 0, nil)
	endpoint, pubs := enginetest.Publish(t, 2, 16)
	for i := range 2 {
		spec := rank(i)
		spec.Endpoint, spec.DPMode, spec.DPRank, spec.Events = "http://h:1", registry.Internal, i, &registry.Events{Endpoint: endpoint}
		add(t, r, spec)
	}
	wait.For(t, "subscriptions", func() bool { return pubs[0].Subscribers() == 1 && pubs[1].Subscribers() == 1 })
	tokens := prompt(1, 1600)
	has := func(want int32) func() bool {
		return func() bool {
			p, err := r.Prefixes("m", tokens, connector.Scope{})
			return err == nil && p[0].Match.GPU == 0 && p[1].Match.GPU == want
		}
	}
	// A subscriber is connected a little before its subscription has arrived: what is published until then is
	// not for it.
	wait.For(t, "the blocks in the index", func() bool {
		pubs[1].Store(tokens)
		return has(1600)()
	})
	if d := ask(t, r, free(tokens)); d.Rank != 1 || d.Header != "1" || d.UseTokens != 1600-16 {
		t.Errorf("%+v", d)
	}
	pubs[1].Clear()
	wait.For(t, "no blocks in the index", has(0))
}
