package route

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
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
	for _, name := range []string{"cost", "kv-aware", "conversation/cost", "published/kv-aware"} {
		r := newRouter(t, 0, func(o *Options) {
			o.Policy = func() policy.Policy { p, _ := byname.New(byname.Options{Name: name}); return p }
			o.Load.AssumeKVReuse = true
		})
		tokens := prompt(1, 8000)
		for i := range 8 {
			spec := rank(i)
			spec.Events = &registry.Events{Endpoint: "tcp://127.0.0.1:1"}
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
			t.Errorf("%s: %v allocations", name, least)
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
	var keys []connector.Key
	var ids []uint64
	key := connector.RootKey(16, connector.Scope{})
	for ; len(tokens) >= 16; tokens = tokens[16:] {
		key, _ = connector.NextKey(key, connector.AppendTokens(nil, tokens[:16]), nil)
		keys, ids = append(keys, key), append(ids, prefix.KeyID(key))
	}
	if err := r.Index().Stored(h, 0, false, ids, keys); err != nil {
		t.Fatal(err)
	}
}
