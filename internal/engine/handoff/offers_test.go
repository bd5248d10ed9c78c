package handoff

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func testOffer(blocks int) connector.Offer {
	o := &connector.HandoffOffer{Shards: []connector.HandoffShard{{Blocks: make([]connector.HandoffBlock, blocks)}}}
	return connector.Offer{Tokens: 16 * blocks, Handoff: o}
}

func TestOffersAreKeptUntilTakenAndBounded(t *testing.T) {
	var o offers
	if got := o.note("r", testOffer(3)); got.Tokens != 48 || o.take("r") == nil || o.take("r") != nil {
		t.Errorf("offer %+v is not taken once", got)
	}
	for i := range 5 * maxOffers / 2 {
		o.note(fmt.Sprint(i), testOffer(1))
	}
	if n := len(o.young) + len(o.old); n > 2*maxOffers || o.take(fmt.Sprint(5*maxOffers/2-maxOffers)) == nil {
		t.Errorf("%d offers remembered, want at most %d and the newest among them", n, 2*maxOffers)
	}
	// A request that is offered and taken again and again costs nobody else's offer.
	o = offers{}
	o.note("waits", testOffer(1))
	for range 3 * maxOffers {
		o.note("again", testOffer(1))
	}
	if o.take("again") == nil || o.take("waits") == nil || len(o.young)+len(o.old) != 0 {
		t.Errorf("%d and %d offers are left, want none, both taken", len(o.young), len(o.old))
	}
	o.note("r", testOffer(1))
	if got := o.note("r", connector.Offer{Tokens: 16}); got.Tokens != 0 || o.take("r") != nil {
		t.Error("an offer without a place was passed on")
	}
}
