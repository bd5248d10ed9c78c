package route

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/router/registry"
)

// pair is a router with two ranks of a node, and a request that is in flight at the first.
func pair(t *testing.T) (r *Router, specs []registry.Rank, handle uint64) {
	t.Helper()
	r = newRouter(t, 0, nil)
	a, b := rank(0), rank(1)
	for _, s := range []*registry.Rank{&a, &b} {
		s.Node, s.NodeURL, s.BlockSize = "n", "http://127.0.0.1:1", 16
	}
	add(t, r, a, b)
	req := free(prompt(1, 640))
	req.Pin = 0
	d := ask(t, r, req)
	if d.Rank != 0 {
		t.Fatalf("%+v", d)
	}
	return r, []registry.Rank{a, b}, d.Handle
}

func TestAnUpdateThatIsRefusedChangesNothing(t *testing.T) {
	other := registry.Rank{ID: 9, Model: "n", Endpoint: "http://h", BlockSize: 32}
	for name, change := range map[string]func(a, b *registry.Rank){
		"another URL than the node's other ranks": func(a, _ *registry.Rank) { a.NodeURL = "http://127.0.0.1:2" },
		"two URLs of one node":                    func(a, b *registry.Rank) { a.NodeURL, b.NodeURL = "http://127.0.0.1:2", "http://127.0.0.1:3" },
		"a node of no URL":                        func(a, _ *registry.Rank) { a.Node, a.NodeURL = "x", "" },
		"a bucket of no URL":                      func(a, b *registry.Rank) { a.Bucket, b.MaxActive = "x", 3 },
		"another block size":                      func(_, b *registry.Rank) { b.BlockSize = 32 },
		"another model's block size":              func(a, _ *registry.Rank) { a.Model = "n" },
		"another model's name":                    func(_, b *registry.Rank) { b.Adapters = []string{"n"} },
		"a name of two models":                    func(a, b *registry.Rank) { a.Adapters, b.Model, b.Adapters = []string{"x"}, "y", []string{"x"} },
		"a rank twice":                            func(a, b *registry.Rank) { b.ID, b.MaxActive = a.ID, 7 },
		"an unknown rank":                         func(a, b *registry.Rank) { a.MaxActive, b.ID = 3, 77 },
	} {
		t.Run(name, func(t *testing.T) {
			r, specs, handle := pair(t)
			add(t, r, other)
			a, b := specs[0], specs[1]
			change(&a, &b)
			if err := r.Update(a, b); err == nil {
				t.Fatal("it was not refused")
			}
			for _, want := range specs {
				got, ok := r.Rank(want.ID)
				if !ok || got.NodeURL != want.NodeURL || got.MaxActive != 0 || got.Model != want.Model {
					t.Errorf("%+v", got)
				}
			}
			req := free(prompt(1, 640))
			req.Pin = 0
			if d := ask(t, r, req); d.Match.GPU != 640-16 {
				t.Errorf("its GPU's blocks were forgotten: %+v", d)
			}
			if !r.Finish(handle) {
				t.Error("its request in flight was forgotten")
			}
		})
	}
}

// The ranks of a node change its URL together: one alone would not fit the others.
func TestRanksThatShareANodeChangeTogether(t *testing.T) {
	r, specs, handle := pair(t)
	for i := range specs {
		specs[i].NodeURL = "http://127.0.0.1:2"
	}
	if err := r.Update(specs[0]); !errors.Is(err, ErrMismatch) {
		t.Errorf("one alone: %v", err)
	}
	if err := r.Update(specs...); err != nil {
		t.Fatal(err)
	}
	req := free(prompt(1, 640))
	req.Pin = 0
	if d := ask(t, r, req); d.Match.GPU != 640-16 || !r.Finish(d.Handle) {
		t.Errorf("the GPU's blocks were forgotten: %+v", d)
	}
	if !r.Finish(handle) || len(r.flights.byID) != 0 {
		t.Error("a request in flight was forgotten")
	}
	for i := range int32(2) {
		if got, ok := r.Rank(i); !ok || got.NodeURL != "http://127.0.0.1:2" {
			t.Errorf("%+v", got)
		}
	}
	if n := len(r.Stats().Stores); n != 1 {
		t.Errorf("%d feeds for one node", n)
	}
	// One says no URL: it takes the others'.
	specs[0].NodeURL, specs[1].NodeURL = "http://127.0.0.1:3", ""
	if err := r.Update(specs...); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.Ranks != 2 || len(s.Stores) != 1 {
		t.Errorf("%+v", s)
	}
	// Their events change with it: they are as ready as they were.
	r.SetReady(1, false, "test")
	for i := range specs {
		specs[i].NodeURL, specs[i].HashDomain = "http://127.0.0.1:4", "other"
	}
	if err := r.Update(specs...); err != nil {
		t.Fatal(err)
	}
	if a, _ := r.Rank(0); !a.Ready {
		t.Errorf("%+v", a)
	}
	if b, _ := r.Rank(1); b.Ready || b.Why != "test" || b.NodeURL != "http://127.0.0.1:4" {
		t.Errorf("%+v", b)
	}
	if s := r.Stats(); s.Ranks != 2 || len(s.Stores) != 1 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	for i := range int32(2) {
		if _, err := r.Remove(i); err != nil {
			t.Error(err)
		}
	}
	if s := r.Stats(); len(s.Stores) != 0 || s.Index.Holders != 0 {
		t.Errorf("%+v", s)
	}
	if err := r.Update(); err != nil {
		t.Errorf("nothing: %v", err)
	}
}
