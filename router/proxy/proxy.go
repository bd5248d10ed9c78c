package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/router/front"
)

// Proxy is the handler of completions, and has that of engines' other paths: see [Proxy.Others]. It is safe for concurrent use.
type Proxy struct {
	opts    Options
	buffers sync.Pool
	counts  counts
}

// counts count how requests ended, and what was tried for them.
type counts struct {
	ok, client, refused, failed, broken, left atomic.Uint64
	tries, untokenized, others                atomic.Uint64
	inFlight                                  atomic.Int64
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
		OK: c.ok.Load(), ClientErrors: c.client.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Broken: c.broken.Load(),
		Left: c.left.Load(), Retries: c.tries.Load(), Untokenized: c.untokenized.Load(), Others: c.others.Load(), InFlight: c.inFlight.Load(),
	}
}

// ServeHTTP forwards a completion to a rank.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.forward(w, r, p.read) }

// forward forwards what read reads of a request.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, read func(http.ResponseWriter, *http.Request) (*incoming, error)) {
	began := time.Now()
	p.counts.inFlight.Add(1)
	defer p.counts.inFlight.Add(-1)
	in, err := read(w, r)
	if err != nil {
		p.counts.client.Add(1)
		front.ErrorOf(err).Write(w)
		return
	}
	a := attempt{proxy: p, w: w, r: r, in: in, began: began}
	for try := range p.opts.MaxTries {
		if try > 0 {
			p.counts.tries.Add(1)
		}
		if err := p.opts.Router.Route(r.Context(), &in.Request.Request, &a.decision); err != nil {
			p.unrouted(w, r, err)
			return
		}
		if !a.decision.Placed() {
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
func (p *Proxy) unrouted(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		p.counts.left.Add(1)
		return
	}
	e := front.ErrorOf(err)
	if e.Status < http.StatusInternalServerError {
		p.counts.client.Add(1)
	} else {
		p.counts.refused.Add(1)
	}
	e.Write(w)
}

// giveUp answers a request that no rank answered: with the last rank's own refusal if it gave one.
func (p *Proxy) giveUp(a *attempt) {
	switch {
	case a.refusal != nil:
		p.counts.failed.Add(1)
		toClient(a.w.Header(), a.refusal.header, a.in, &a.refusal.decision)
		a.w.Header().Del("Content-Length") // not all of it may be there
		a.w.WriteHeader(a.refusal.status)
		_, _ = a.w.Write(a.refusal.body) // the client has gone
	case a.last != nil:
		p.counts.failed.Add(1)
		(&front.Error{
			Status: http.StatusBadGateway, Code: "upstream_failed",
			Message: fmt.Sprintf("every rank tried failed (%d), the last one: %v", len(a.in.Exclude), a.last),
		}).Write(a.w)
	default:
		p.counts.refused.Add(1)
		front.Refusal(&a.decision.Decision).Write(a.w)
	}
}
