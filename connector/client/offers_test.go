package client

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func stagedOffer(blocks int) connector.Offer {
	o := &connector.HandoffOffer{Shards: []connector.HandoffShard{{Blocks: make([]connector.HandoffBlock, blocks)}}}
	for i := range o.Shards[0].Blocks {
		o.Shards[0].Blocks[i].Offset = uint64(i+1) << 12
	}
	return connector.Offer{Tokens: 16 * blocks, Handoff: o}
}

// A daemon that ended between match and step plans nothing; what was offered is loaded all
// the same.
func TestStagedLoadsArePlannedWithoutTheDaemon(t *testing.T) {
	m := testOptions("").Manifest
	var o offers
	if got := o.note("r", stagedOffer(3)); got.Tokens != 48 {
		t.Fatalf("offer of %d tokens, want 48", got.Tokens)
	}
	alloc := connector.Alloc{Request: "r", Blocks: [][]uint32{{7, 8, 9, 10}}, External: 32}
	saves := connector.Plan{Saves: []connector.Transfer{{Blocks: []connector.PlanBlock{{Slot: 5}}}}}
	for name, reply := range map[string]connector.StepReply{
		"daemon dead": {}, "daemon saves": {Metadata: saves.Append(nil)}, "garbage": {Metadata: []byte("garbage")},
	} {
		o.note("r", stagedOffer(3))
		got := o.plan(&connector.StepRequest{Allocs: []connector.Alloc{alloc}}, reply, &m, connector.NamespaceDigest{3})
		p, err := connector.ParsePlan(got.Metadata)
		if err != nil || len(p.Loads) != 1 || len(p.Loads[0].Transfers) != 1 || p.Namespace != (connector.NamespaceDigest{3}) {
			t.Fatalf("%s: plan %+v, %v", name, p, err)
		}
		tr := p.Loads[0].Transfers[0]
		if len(tr.Blocks) != 2 || tr.Blocks[1].Slot != 8 || tr.Handoff[0].Blocks[1].Offset != 2<<12 {
			t.Errorf("%s: transfer %+v", name, tr)
		}
		if want := len(reply.Metadata) > 10; (len(p.Saves) == 1) != want {
			t.Errorf("%s: %d saves", name, len(p.Saves))
		}
		if len(got.Loads) != 1 || fmt.Sprint(got.Loads[0].Blocks) != "[7 8]" {
			t.Errorf("%s: the engine waits for %+v", name, got.Loads)
		}
	}
}

func TestOffersEndWithTheirRequests(t *testing.T) {
	m := testOptions("").Manifest
	var o offers
	for i := range 3 * maxOffers / 2 {
		o.note(fmt.Sprint(i), stagedOffer(1))
	}
	if len(o.byRequest) != maxOffers {
		t.Errorf("%d offers remembered, want at most %d", len(o.byRequest), maxOffers)
	}
	var ids []string
	for i := range 3 * maxOffers / 2 {
		ids = append(ids, fmt.Sprint(i))
	}
	o.plan(&connector.StepRequest{Finished: ids}, connector.StepReply{}, &m, connector.NamespaceDigest{})
	if len(o.byRequest) != 0 {
		t.Errorf("%d offers are left", len(o.byRequest))
	}
	// A request that is offered and taken again and again costs nobody else's offer.
	o.note("waits", stagedOffer(1))
	for range 2 * maxOffers {
		o.note("again", stagedOffer(1))
		o.forget("again")
	}
	if len(o.byRequest) != 1 || len(o.order) > 64 {
		t.Errorf("%d offers and %d places are left, want the one that waits", len(o.byRequest), len(o.order))
	}
	if got := o.note("r", connector.Offer{Tokens: 16}); got.Tokens != 0 {
		t.Error("an offer without a place was passed on")
	}
}
