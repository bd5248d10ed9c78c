package wire

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// steadyStep is a step of an engine that decodes 64 requests.
func steadyStep() *connector.StepRequest {
	m := new(connector.StepRequest)
	for i := range 64 {
		m.Scheduled = append(m.Scheduled, connector.Scheduled{
			Request: fmt.Sprintf("request-%d", i), NewBlocks: [][]uint32{{uint32(i)}, {7}}, Computed: 100, Count: 1, From: 100, NewTokens: []uint32{5},
		})
	}
	m.Allocs = []connector.Alloc{{Request: "new", Blocks: [][]uint32{{1, 2}, {3, 4}}, External: 32, GroupComputed: []int{0, 16}}}
	m.Finished = []string{"done"}
	return m
}

func TestHotFramesCostNoAllocation(t *testing.T) {
	match := &connector.MatchRequest{
		Request: "r", Tokens: make([]uint32, 8192), Scope: connector.Scope{Salt: "tenant"},
		Spans: []connector.Span{{Start: 3, End: 9, ID: []byte("image")}},
	}
	offer := connector.Offer{Tokens: 8000, Async: true}
	told := corpusOffer()
	traced := *match
	traced.Tiers, traced.Trace = true, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	step := steadyStep()
	buf := make([]byte, 0, 1<<20)
	var into connector.MatchRequest
	var steps StepDecoder
	var err error
	note := func(e error) {
		if e != nil {
			err = e
		}
	}
	for name, f := range map[string]func(){
		"match out":    func() { buf = AppendMatch(buf[:0], match) },
		"match back":   func() { note(DecodeMatch(AppendMatch(buf[:0], match), &into)) },
		"offer":        func() { note(DecodeOffer(AppendOffer(buf[:0], offer), &offer)) },
		"traced match": func() { note(DecodeMatch(AppendMatch(buf[:0], &traced), &into)) },
		"tiers out":    func() { buf = AppendOffer(buf[:0], told) },
		"step out":     func() { buf = AppendStep(buf[:0], step) },
		"step back":    func() { _, e := steps.Decode(AppendStep(buf[:0], step)); note(e) },
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v; want none", name, n, err)
		}
	}
}

// Nothing of one step may show in the next.
func TestStepDecoderForgetsTheStepBefore(t *testing.T) {
	var steps StepDecoder
	if _, err := steps.Decode(AppendStep(nil, steadyStep())); err != nil {
		t.Fatal(err)
	}
	small := &connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "other"}}, Preempted: []string{"p"}}
	got, err := steps.Decode(AppendStep(nil, small))
	if err != nil || len(got.Scheduled) != 1 || len(got.Allocs) != 0 || len(got.Finished) != 0 || len(got.Preempted) != 1 ||
		got.Scheduled[0].Request != "other" || got.Scheduled[0].NewBlocks != nil || got.Scheduled[0].NewTokens != nil || got.Scheduled[0].Count != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Memory that is used again must not change what a body says, whatever came before it.
func FuzzStepDecoderIsTheSameUsedAgain(f *testing.F) {
	f.Add(AppendStep(nil, steadyStep()), AppendStep(nil, new(connector.StepRequest)))
	f.Add([]byte{0x80}, AppendStep(nil, steadyStep()))
	f.Fuzz(func(t *testing.T, before, body []byte) {
		var used, fresh StepDecoder
		_, _ = used.Decode(before)
		got, err := used.Decode(body)
		want, wantErr := fresh.Decode(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v used again, %v fresh", err, wantErr)
		}
		if err == nil && !bytes.Equal(AppendStep(nil, got), AppendStep(nil, want)) {
			t.Errorf("%+v used again, %+v fresh", got, want)
		}
	})
}
