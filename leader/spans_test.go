package leader

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
)

func TestEqualTokensWithOtherContentDoNotShare(t *testing.T) {
	f := newFixture(t, nil)
	prompt := tokens(0, 42)
	image := func(start, end int, id string) []connector.Span {
		return []connector.Span{{Start: 4, End: 6, ID: []byte("common")}, {Start: start, End: end, ID: []byte(id)}}
	}
	f.match(connector.MatchRequest{Request: "seed", Tokens: prompt, Spans: image(18, 26, "cat")})
	seed := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "seed", Reset: true, NewBlocks: f.tables(0, 11), Count: 42}}})
	f.save(seed)
	for i, tc := range []struct {
		spans []connector.Span
		want  int
	}{
		{image(18, 26, "cat"), 40}, {image(18, 26, "dog"), 16}, {image(18, 25, "cat"), 16}, {image(21, 26, "cat"), 16}, {nil, 4},
	} {
		if got := f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: prompt, Spans: tc.spans}); got != tc.want {
			t.Errorf("case %d is offered %d tokens, want %d", i, got, tc.want)
		}
	}
	// The contract's own form, block by block.
	spans := image(18, 26, "cat")
	key, proof := connector.RootKey(4, connector.Scope{}), connector.RootProof(f.opts.Namespace, 4, connector.Scope{})
	for i, b := range seed.Saves[0].Blocks {
		blk := connector.AppendExtra(connector.AppendTokens(nil, prompt[4*i:4*i+4]), spans, 4*i, 4*i+4)
		key, _ = connector.NextKey(key, blk, nil)
		proof, _ = connector.NextProof(proof, blk, nil)
		if b.Key != key || b.Proof != proof {
			t.Fatalf("block %d has another key or proof than the contract says", i)
		}
	}
}

func TestChangedScopeOrSpansStartOver(t *testing.T) {
	f := newFixture(t, nil)
	prompt := tokens(0, 18)
	f.run("seed", prompt, 0, connector.Scope{})
	spans := []connector.Span{{Start: 0, End: 4, ID: []byte("x")}}
	for _, m := range []connector.MatchRequest{{Scope: connector.Scope{Salt: "s"}}, {Spans: spans}} {
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 16 {
			t.Fatalf("offer of %d tokens, want 16", got)
		}
		m.Request, m.From = "r", 18
		if _, err := f.Match(t.Context(), &m); !errors.Is(err, connector.ErrUnknownRequest) {
			t.Errorf("%v, want ErrUnknownRequest: the caller repeats from 0", err)
		}
		m.From, m.Tokens = 0, prompt
		if got := f.match(m); got != 0 {
			t.Errorf("offer of %d tokens to other content", got)
		}
		if f.x.held() != 0 {
			t.Error("the lease of the first is held")
		}
	}
}

func TestBadSpansAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	for _, spans := range [][]connector.Span{
		{{Start: 4, End: 4}}, {{Start: -1, End: 4}}, {{Start: 4, End: 8}, {Start: 0, End: 2}},
		{{Start: 0, End: connector.MaxTokens + 1}}, make([]connector.Span, connector.MaxSpans+1),
	} {
		_, err := f.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: tokens(0, 8), Spans: spans})
		if !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%v, want ErrBadRequest", err)
		}
	}
}

// What a match refers to is the memory of a frame that the next one overwrites.
func TestMatchKeepsNothingOfTheFrame(t *testing.T) {
	f := newFixture(t, nil)
	frame := bytes.Repeat([]byte("r"), 64)
	view := func(from, to int) string { return unsafe.String(&frame[from], to-from) }
	toks := tokens(0, 18)
	m := connector.MatchRequest{
		Request: view(0, 8), Tokens: toks, Scope: connector.Scope{Salt: view(8, 16), LoRA: view(16, 24)},
		Spans: []connector.Span{{Start: 0, End: 3, ID: frame[24:32]}},
	}
	f.match(m)
	clear(frame)
	clear(toks)
	m.Spans[0] = connector.Span{}
	r := strings.Repeat("r", 8)
	got := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: r, Reset: true, NewBlocks: f.tables(0, 5), Count: 18}}})
	g := newFixture(t, nil)
	g.match(connector.MatchRequest{
		Request: r, Tokens: tokens(0, 18), Scope: connector.Scope{Salt: r, LoRA: r}, Spans: []connector.Span{{Start: 0, End: 3, ID: []byte(r)}},
	})
	want := g.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: r, Reset: true, NewBlocks: g.tables(0, 5), Count: 18}}})
	if !bytes.Equal(got.Append(nil), want.Append(nil)) {
		t.Error("the plan changed with the frame")
	}
}
