package server

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

func TestHotCallsCostNoAllocation(t *testing.T) {
	h := &handler{scheduler: newEcho()}
	match := wire.Frame{Header: wire.Header{Op: wire.OpMatch}, Body: wire.AppendMatch(nil, &connector.MatchRequest{
		Request: "r", Tokens: make([]uint32, 8192), Scope: connector.Scope{Salt: "s", LoRA: "l"},
	})}
	step := wire.Frame{Header: wire.Header{Op: wire.OpStep}, Body: wire.AppendStep(nil, &connector.StepRequest{
		Scheduled: []connector.Scheduled{{Request: "r", NewBlocks: [][]uint32{{1}}, Count: 1, NewTokens: []uint32{5}}},
	})}
	out := make([]byte, 0, 4096)
	for name, f := range map[string]*wire.Frame{"match": &match, "step": &step} {
		var err error
		if n := testing.AllocsPerRun(100, func() {
			if _, e := h.handle(t.Context(), f, out); e != nil {
				err = e
			}
		}); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v; want none", name, n, err)
		}
	}
}

// The whole way of a request through the server, both ends of the socket in this process.
func TestRoundTripCostsNoAllocation(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	_, conn := dial(t, socket)
	greet(t, conn, hello(t))
	m := &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 16)}
	var err error
	var offer connector.Offer
	n := testing.AllocsPerRun(200, func() {
		if e := conn.Send(wire.Header{ID: 2, Op: wire.OpMatch}, wire.AppendMatch(conn.Begin(), m)); e != nil {
			err = e
		}
		f, e := conn.Read()
		if e == nil {
			e = wire.DecodeOffer(f.Body, &offer)
		}
		if e != nil {
			err = e
		}
	})
	if err != nil || offer.Tokens != 16 || n != 0 {
		t.Errorf("%v allocations, offer %+v, %v; want none", n, offer, err)
	}
}
