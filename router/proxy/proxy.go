package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kvconn/kvconn/router/front"
)

// Proxy is the handler of completions, and has that of engines' other paths: see [Proxy.Others]. It is safe for concurrent use.
type Proxy struct {
	opts    Options
	buffers sync.Pool
	counts  counts
}

// Stats are what a proxy has done, with their names in JSON and as metrics. A request ends in one of the first
// six.
type Stats struct {
	// OK were answered. ClientErrors were the clients' own fault. Refused found no rank. Failed failed on
	// every rank tried. Broken broke off after the first byte. Left were given up by the client.
	OK           uint64 `json:"ok" metric:"completions_total" label:"outcome=ok" help:"Requests forwarded to engines, completions and others, by how they ended."`
	ClientErrors uint64 `json:"client_errors" metric:"completions_total" label:"outcome=client_error"`
	Refused      uint64 `json:"refused" metric:"completions_total" label:"outcome=refused"`
	Failed       uint64 `json:"failed" metric:"completions_total" label:"outcome=failed"`
	Broken       uint64 `json:"broken" metric:"completions_total" label:"outcome=broken"`
	Left         uint64 `json:"left" metric:"completions_total" label:"outcome=left"`
	// Retries are further tries, Untokenized requests that were routed by load alone.
	Retries     uint64 `json:"retries" metric:"retries_total" help:"Further tries on another rank before the first byte."`
	Untokenized uint64 `json:"untokenized" metric:"untokenized_total" help:"Completions routed by load alone because no engine tokenized them."`
	// Others are those for other paths than completions, which load alone routes.
	Others uint64 `json:"others" metric:"other_requests_total" help:"Requests for other paths than completions, which load alone routes; a part of completions_total."`
	// InFlight are not answered yet.
	InFlight int64 `json:"in_flight"`
}

// New makes a proxy.
func New(o Options) (*Proxy, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{opts: o}
	p.buffers.New = func() any { return new([32 << 10]byte) }
	return p, nil
}

// Stats returns what the proxy has done.
func (p *Proxy) Stats() Stats {
	c := &p.counts
	return Stats{
		OK: c.ended[endedOK].Load(), ClientErrors: c.ended[endedClientError].Load(), Refused: c.ended[endedRefused].Load(),
		Failed: c.ended[endedFailed].Load(), Broken: c.ended[endedBroken].Load(), Left: c.ended[endedLeft].Load(),
		Retries: c.tries.Load(), Untokenized: c.untokenized.Load(), Others: c.others.Load(), InFlight: c.inFlight.Load(),
	}
}

// ServeHTTP forwards a completion to a rank.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.forward(w, r, p.read) }

// forward forwards what read reads of a request.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, read func(http.ResponseWriter, *http.Request) (*incoming, error)) {
	began := time.Now()
	p.counts.inFlight.Add(1)
	defer p.counts.inFlight.Add(-1)
	span := p.opts.Spans.Begin(r.Header)
	defer span.End()
	in, err := read(w, r)
	if err != nil {
		e := front.ErrorOf(err)
		p.ended(span, endedClientError, e.Status, "")
		e.Write(w)
		return
	}
	span.Model(in.Model)
	a := attempt{proxy: p, w: w, r: r, in: in, span: span, began: began}
	for try := range p.opts.MaxTries {
		if try > 0 {
			p.counts.tries.Add(1)
		}
		if err := p.opts.Router.Route(r.Context(), &in.Request.Request, &a.decision); err != nil {
			p.unrouted(&a, err)
			return
		}
		if !a.decision.Placed() {
			span.Unplaced(string(a.decision.Reason))
			break
		}
		if a.run() {
			return
		}
		in.Exclude = append(in.Exclude, a.decision.Rank)
	}
	p.giveUp(&a)
}

// unrouted answers a request that the router does not take.
func (p *Proxy) unrouted(a *attempt, err error) {
	if a.r.Context().Err() != nil {
		p.ended(a.span, endedLeft, 0, "")
		return
	}
	e := front.ErrorOf(err)
	if e.Status < http.StatusInternalServerError {
		p.ended(a.span, endedClientError, e.Status, "")
	} else {
		p.ended(a.span, endedRefused, e.Status, e.Message)
	}
	e.Write(a.w)
}

// giveUp answers a request that no rank answered: with the last rank's own refusal if it gave one.
func (p *Proxy) giveUp(a *attempt) {
	switch {
	case a.refusal != nil:
		p.ended(a.span, endedFailed, a.refusal.status, "the last rank tried refused the request")
		toClient(a.w.Header(), a.refusal.header, a.in, &a.refusal.decision)
		a.w.Header().Del("Content-Length") // not all of it may be there
		a.w.WriteHeader(a.refusal.status)
		_, _ = a.w.Write(a.refusal.body) // the client has gone
	case a.last != nil:
		e := front.Error{
			Status: http.StatusBadGateway, Code: "upstream_failed",
			Message: fmt.Sprintf("every rank tried failed (%d), the last one: %v", len(a.in.Exclude), a.last),
		}
		p.ended(a.span, endedFailed, e.Status, e.Message)
		e.Write(a.w)
	default:
		e, why := front.Refusal(&a.decision.Decision), ""
		if e.Status >= http.StatusInternalServerError {
			why = e.Message
		}
		p.ended(a.span, endedRefused, e.Status, why)
		e.Write(a.w)
	}
}
