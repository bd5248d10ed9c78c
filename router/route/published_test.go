package route

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
)

// The published routers probe every rank's cache for a prompt and gather the answers. These are their cases
// of that, by name, with rank 0 holding what it was sent.
func TestPublishedProbeCases(t *testing.T) {
	r := newRouter(t, 0, nil)
	add(t, r, registry.Rank{ID: 0, Model: "m", Endpoint: "http://h", BlockSize: 64}, registry.Rank{ID: 1, Model: "m", Endpoint: "http://i", BlockSize: 64})
	send := func(scope connector.Scope, tokens []uint32) {
		t.Helper()
		req := free(tokens)
		req.Pin, req.Scope = 0, scope
		if d := ask(t, r, req); d.Rank != 0 {
			t.Fatalf("%+v", d)
		}
	}
	probe := func(what string, scope connector.Scope, tokens []uint32, want ...int32) {
		t.Helper()
		list, err := r.Prefixes("m", tokens, scope)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, p := range list {
			got = append(got, p.Match.Usable)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	scope := connector.Scope{LoRA: "42", Salt: "tenant-a"}
	first, second := prompt(1, 100), prompt(2, 50)
	send(scope, first[:64])
	probe("gather: 100 tokens, 64 of them there", scope, first, 64, 0)
	probe("gather: 50 tokens, none of them there", scope, second, 0, 0)
	probe("gather: without the lora", connector.Scope{Salt: "tenant-a"}, first, 0, 0)
	probe("gather: without the salt", connector.Scope{LoRA: "42"}, first, 0, 0)
	probe("gather: a prompt of 1 token", scope, first[:1], 0, 0)

	send(connector.Scope{}, prompt(3, 192))
	probe("probe: 3 blocks of 64", connector.Scope{}, prompt(3, 193), 192, 0)
	probe("probe: empty", connector.Scope{}, nil, 0, 0)
	r.SetReady(0, false, "reuse is off")
	r.SetReady(0, true, "")
	probe("probe: nothing is kept", connector.Scope{}, prompt(3, 193), 0, 0)
}

// A prompt is looked up without its last token, which every engine computes.
func TestPublishedProbeDropsTheLastToken(t *testing.T) {
	r := newRouter(t, 1, nil)
	whole := prompt(1, 64)
	ask(t, r, free(whole))
	for length, want := range map[int]int32{1: 0, 16: 0, 17: 16, 63: 48, 64: 48} {
		if d := ask(t, r, free(whole[:length])); d.UseTokens != want {
			t.Errorf("%d tokens: %d count, want %d", length, d.UseTokens, want)
		}
	}
	if d := ask(t, r, free(append(whole, 1))); d.UseTokens != 64 {
		t.Errorf("one token more: %d count", d.UseTokens)
	}
}

func TestTheLastTokensBlockIsTakenFromTheSlowestTier(t *testing.T) {
	matches := []policy.Match{
		{GPU: 64, Usable: 64}, {GPU: 32, Disk: 32, Usable: 64, LoadDisk: 32}, {Disk: 48, Object: 16, Usable: 64, LoadDisk: 48, LoadObject: 16},
		{GPU: 16, Usable: 64, LoadDisk: 32}, {GPU: 32, Usable: 32},
	}
	leaveLastToken(matches, 64, 16)
	for i, want := range []policy.Match{
		{GPU: 48, Usable: 48}, {GPU: 32, Disk: 16, Usable: 48, LoadDisk: 16}, {Disk: 48, Usable: 48, LoadDisk: 48},
		{GPU: 16, Usable: 48, LoadDisk: 16}, {GPU: 32, Usable: 32},
	} {
		if matches[i] != want {
			t.Errorf("%+v, want %+v", matches[i], want)
		}
	}
}
