package handoff

import "github.com/kvconn/kvconn/connector"

// offers are what the engine was offered and has not taken or refused yet, so that a daemon
// that ends between match and step changes nothing.
type offers struct {
	// Offers that are noted go to young; when that is full, it replaces old.
	young, old map[string]*connector.HandoffOffer
}

// maxOffers bounds young and old, each; real engines have far fewer requests waiting.
const maxOffers = 16384

// note keeps the answer to a match, and returns it. An offer that does not say where its
// bytes lie is none.
func (o *offers) note(request string, offer connector.Offer) connector.Offer {
	o.take(request)
	if offer.Tokens == 0 || offer.Handoff == nil {
		return connector.Offer{}
	}
	if o.young == nil || len(o.young) == maxOffers {
		o.old, o.young = o.young, make(map[string]*connector.HandoffOffer)
	}
	o.young[request] = offer.Handoff
	return offer
}

// take returns a request's offer, nil if there is none, and forgets it.
func (o *offers) take(request string) *connector.HandoffOffer {
	offer := o.young[request]
	if offer == nil {
		offer = o.old[request]
	}
	delete(o.young, request)
	delete(o.old, request)
	return offer
}
