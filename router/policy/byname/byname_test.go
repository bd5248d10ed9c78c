package byname

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/router/policy"
)

func TestPoliciesHaveNames(t *testing.T) {
	for name, want := range map[string]string{
		"cost": "cost", "kv-aware": "kv-aware", "kv-aware-gpu": "kv-aware", "load": "load", "round-robin": "round-robin",
		"conversation": "conversation", "conversation/cost": "conversation", "serve-kv-aware": "serve-kv-aware",
		"first-turn": "first-turn/kv-aware", "first-turn/kv-aware": "first-turn/kv-aware", "first-turn/conversation/cost": "first-turn/conversation",
		"conversation/first-turn/load": "conversation", "published/load": "load", "published/kv-aware": "kv-aware",
		"published/kv-aware-warmup": "kv-aware", "published/conversation": "conversation",
	} {
		p, err := New(Options{Name: name})
		if err != nil || p.Name() != want {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
	for _, name := range strings.Split(names, ", ") {
		if _, err := New(Options{Name: name}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"", "best", "cost/load", "first-turn/", "first-turn/first-turn", "first-turn/first-turn/cost", "first-turn/best", "conversation/",
		"conversation/conversation", "conversation/conversation/cost", "published/cost", "first-turn/published/load", "conversation/published/load",
	} {
		if p, err := New(Options{Name: name}); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q is %v, %v", name, p, err)
		}
	}
}

// Policies that answer exactly as published have to see whole batches.
func TestPublishedPoliciesPlaceBatches(t *testing.T) {
	for _, name := range []string{"published/load", "published/kv-aware", "published/kv-aware-warmup", "published/conversation"} {
		p, err := New(Options{Name: name})
		if _, ok := p.(policy.Batcher); err != nil || !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
