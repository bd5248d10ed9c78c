package route

import (
	"testing"

	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// A decision on a prompt that the chosen rank has, whose events say so.
func TestDecisionsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools allocate")
	}
	for _, c := range []struct {
		policy string
		engine registry.Engine
	}{{"cost", ""}, {"kv-aware", ""}, {"conversation/cost", ""}, {"published/kv-aware", ""}, {"cost", registry.SGLang}} {
		r := newRouter(t, 0, func(o *Options) {
			o.Policy = func() policy.Policy { p, _ := byname.New(byname.Options{Name: c.policy}); return p }
			o.Load.AssumeKVReuse = true
		})
		tokens := prompt(1, 8000)
		for i := range 8 {
			spec := rank(i)
			spec.Events, spec.Engine = &registry.Events{Endpoint: "tcp://127.0.0.1:1"}, c.engine
			add(t, r, spec)
			hold(t, r, int32(i), tokens)
		}
		req := free(tokens)
		req.Conversation = "c"
		var d Decision
		once := func() {
			if err := r.Route(t.Context(), &req, &d); err != nil || !d.Placed() || d.UseTokens != 8000-16 {
				t.Fatalf("%+v %v", d, err)
			}
			r.PrefillDone(d.Handle)
			r.Output(d.Handle, 10)
			r.Finish(d.Handle)
		}
		once()
		// The feeds' attempts to connect allocate beside it, now and then.
		least := 100.0
		for range 10 {
			least = min(least, testing.AllocsPerRun(20, once))
		}
		if least != 0 {
			t.Errorf("%s, engine %q: %v allocations", c.policy, c.engine, least)
		}
	}
}

// hold puts a prompt into a rank's GPU.
func hold(t testing.TB, r *Router, rank int32, tokens []uint32) {
	t.Helper()
	h, ok := r.Holder(rank)
	if !ok {
		t.Fatalf("no rank %d", rank)
	}
	var hasher blockkey.Hasher
	hasher.Begin(r.ranks[rank].pool.view.Load().root)
	keys := hasher.Append(nil, tokens, 16)
	ids := make([]uint64, len(keys))
	for i, key := range keys {
		ids[i] = prefix.KeyID(key)
	}
	if err := r.Index().Stored(h, 0, false, ids, keys); err != nil {
		t.Fatal(err)
	}
}
