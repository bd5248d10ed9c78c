package wire

import (
	"bytes"
	"fmt"
	"testing"
	"time"

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
	hashes := make([]connector.Proof, 8192)
	present := &connector.PresentRequest{Request: "r", Hashes: hashes, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	bits := [][]byte{make([]byte, 1024), make([]byte, 1024)}
	move := &connector.KeyedMove{ID: "m", Scope: connector.Scope{Salt: "tenant"}, Parts: []connector.KeyedPart{
		{Hashes: hashes[:100], Slots: make([]uint32, 100)}, {Group: 1, Hashes: hashes[:50], Slots: make([]uint32, 50)},
	}}
	touch := &connector.TouchRequest{Request: "r", Hashes: hashes}
	offer := connector.Offer{Tokens: 8000, Async: true}
	told := corpusOffer()
	traced := *match
	traced.Tiers, traced.Trace = true, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	step := steadyStep()
	buf := make([]byte, 0, 1<<20)
	var into connector.MatchRequest
	var presentInto connector.PresentRequest
	var touchInto connector.TouchRequest
	var moves MoveDecoder
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
		"present":      func() { note(DecodePresent(AppendPresent(buf[:0], present), &presentInto)) },
		"presence":     func() { buf = AppendPresence(buf[:0], bits) },
		"move":         func() { _, e := moves.Decode(AppendMove(buf[:0], move)); note(e) },
		"touch":        func() { note(DecodeTouch(AppendTouch(buf[:0], touch), &touchInto)) },
		"polled":       func() { buf = AppendPolled(buf[:0], &connector.Polled{}) },
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

// Parts of different sizes in memory that is used again stay apart.
func FuzzMoveDecoderIsTheSameUsedAgain(f *testing.F) {
	move := &connector.KeyedMove{ID: "m", Request: "r"}
	for i := range 5 {
		move.Parts = append(move.Parts, connector.KeyedPart{Group: i, Hashes: make([]connector.Proof, 3*i), Slots: make([]uint32, 3*i)})
		for j := range 3 * i {
			move.Parts[i].Hashes[j], move.Parts[i].Slots[j] = connector.Proof{byte(i), byte(j)}, uint32(100*i+j)
		}
	}
	f.Add(AppendMove(nil, move), AppendMove(nil, &connector.KeyedMove{Parts: move.Parts[2:4]}))
	f.Add([]byte{0x80}, AppendMove(nil, move))
	waiting := *move
	waiting.Wait = time.Second
	f.Add(AppendMove(nil, &waiting), AppendMove(nil, move))
	f.Fuzz(func(t *testing.T, before, body []byte) {
		var used, fresh MoveDecoder
		_, _ = used.Decode(before)
		got, err := used.Decode(body)
		want, wantErr := fresh.Decode(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v used again, %v fresh", err, wantErr)
		}
		if err == nil && !bytes.Equal(AppendMove(nil, got), AppendMove(nil, want)) {
			t.Errorf("%+v used again, %+v fresh", got, want)
		}
		if err == nil && got.Blocks() > connector.MaxKeyedBlocks {
			t.Errorf("%d blocks", got.Blocks())
		}
	})
}
