package client

import "github.com/kvconn/kvconn/connector"

// offers are what a staged engine was offered and has not taken or refused yet. An engine
// that cannot report a failed load has its loads planned from them, by the client alone:
// a daemon that ends between match and step changes nothing.
type offers struct {
	byRequest map[string]noted
	// order is that of the offers, for the bound; those taken back since are in it, too.
	order []placed
	next  uint64
}

// noted is an offer and its place in the order.
type noted struct {
	*connector.HandoffOffer
	seq uint64
}

type placed struct {
	request string
	seq     uint64
}

// maxOffers bounds what is remembered; real engines have far fewer requests waiting.
const maxOffers = 16384

// note takes in the answer to a match, and returns it. An offer that says not where its
// bytes lie is none.
func (o *offers) note(request string, offer connector.Offer) connector.Offer {
	if offer.Tokens == 0 || offer.Handoff == nil {
		o.forget(request)
		return connector.Offer{}
	}
	if o.byRequest == nil {
		o.byRequest = make(map[string]noted)
	}
	o.next++
	o.byRequest[request] = noted{offer.Handoff, o.next}
	o.order = append(o.order, placed{request, o.next})
	for len(o.byRequest) > maxOffers {
		oldest := o.order[0]
		o.order = o.order[1:]
		if o.current(oldest) {
			o.forget(oldest.request)
		}
	}
	o.compact()
	return offer
}

// current reports whether a place is that of an offer that still stands.
func (o *offers) current(p placed) bool {
	n, known := o.byRequest[p.request]
	return known && n.seq == p.seq
}

func (o *offers) forget(request string) { delete(o.byRequest, request) }

// plan adds the loads of a step to the saves that the leader has planned.
func (o *offers) plan(m *connector.StepRequest, reply connector.StepReply, manifest *connector.Manifest, ns connector.NamespaceDigest) connector.StepReply {
	plan := connector.Plan{Namespace: ns}
	reply.Loads = nil
	for i := range m.Allocs {
		a := &m.Allocs[i]
		if a.External > 0 {
			load := o.byRequest[a.Request].Load(a, manifest) // nil where there is no offer
			plan.Loads = append(plan.Loads, load)
			reply.Loads = append(reply.Loads, load.Planned())
		}
		o.forget(a.Request)
	}
	for _, ids := range [][]string{m.Preempted, m.Finished} {
		for _, id := range ids {
			o.forget(id)
		}
	}
	if len(plan.Loads) == 0 {
		return reply
	}
	// The leader's plan is its own format: whoever cannot read it saves nothing.
	if saves, err := connector.ParsePlan(reply.Metadata); err == nil {
		plan.Saves = saves.Saves
	}
	reply.Metadata = plan.Append(nil)
	return reply
}

// compact drops the places of offers that no longer stand once they are most.
func (o *offers) compact() {
	if len(o.order) < 64 || len(o.order) < 2*len(o.byRequest) {
		return
	}
	left := o.order[:0]
	for _, p := range o.order {
		if o.current(p) {
			left = append(left, p)
		}
	}
	o.order = left
}
