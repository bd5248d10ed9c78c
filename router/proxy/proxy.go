package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/router/route"
)

// Proxy is the handler of completions. It is safe for concurrent use.
type Proxy struct {
	opts    Options
	buffers sync.Pool
	counts  counts
}

// counts count how requests ended, and what was tried for them.
type counts struct {
	ok, client, refused, failed, broken, left atomic.Uint64
	tries, untokenized                        atomic.Uint64
	inFlight                                  atomic.Int64
}

// Stats are what a proxy has done. Requests end in one of the first six.
type Stats struct {
	// OK were answered, ClientErrors are those whose own fault it is, Refused found no rank, Failed
	// failed on every rank tried, Broken broke off after the first byte, Left were given up by the
	// client.
	OK, ClientErrors, Refused, Failed, Broken, Left uint64
	// Retries are further tries, Untokenized requests that were routed by load alone.
	Retries, Untokenized uint64
	// InFlight are those now.
	InFlight int64
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
		Left: c.left.Load(), Retries: c.tries.Load(), Untokenized: c.untokenized.Load(), InFlight: c.inFlight.Load(),
	}
}

// ServeHTTP forwards a completion to a rank.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.counts.inFlight.Add(1)
	defer p.counts.inFlight.Add(-1)
	in, err := p.read(w, r)
	if err != nil {
		p.counts.client.Add(1)
		p.fail(w, err)
		return
	}
	a := attempt{proxy: p, w: w, r: r, in: in}
	for try := range p.opts.MaxTries {
		if try > 0 {
			p.counts.tries.Add(1)
		}
		if err := p.opts.Router.Route(r.Context(), &in.route, &a.decision); err != nil {
			p.unrouted(w, r, err)
			return
		}
		if !a.decision.Placed() {
			break
		}
		if a.run() {
			return
		}
		in.route.Exclude = append(in.route.Exclude, a.decision.Rank)
	}
	p.giveUp(&a)
}

// unrouted answers a request that the router does not take.
func (p *Proxy) unrouted(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil:
		p.counts.left.Add(1)
		return
	case errors.Is(err, route.ErrBusy):
		p.counts.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		err = &httpError{http.StatusServiceUnavailable, "busy", err.Error()}
	case errors.Is(err, route.ErrUnknownModel):
		p.counts.client.Add(1)
		err = &httpError{http.StatusNotFound, "model_not_found", err.Error()}
	case errors.Is(err, route.ErrPromptTooLong):
		p.counts.client.Add(1)
		err = &httpError{http.StatusBadRequest, "prompt_too_long", err.Error()}
	default:
		p.counts.failed.Add(1)
	}
	p.fail(w, err)
}

// giveUp answers a request that no rank answered: with the last rank's own refusal if it gave one.
func (p *Proxy) giveUp(a *attempt) {
	d := &a.decision
	switch {
	case a.refusal != nil:
		p.counts.failed.Add(1)
		toClient(a.w.Header(), a.refusal.header, a.in, &a.refusal.decision)
		a.w.Header().Del("Content-Length") // not all of it may be there
		a.w.WriteHeader(a.refusal.status)
		_, _ = a.w.Write(a.refusal.body) // the client has gone
	case a.last != nil:
		p.counts.failed.Add(1)
		p.fail(a.w, &httpError{http.StatusBadGateway, "upstream_failed", fmt.Sprintf("every rank tried failed (%d), the last one: %v", len(a.in.route.Exclude), a.last)})
	default:
		p.counts.refused.Add(1)
		status, message := Refusal(d.Reason)
		if d.Reason.Retry() {
			a.w.Header().Set("Retry-After", strconv.Itoa(1))
		}
		p.fail(a.w, &httpError{status, d.Reason.String(), message})
	}
}

// apiError is an error in OpenAI's form.
type apiError struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"`
	} `json:"error"`
}

func (e *httpError) body() []byte {
	var v apiError
	v.Error.Message, v.Error.Type, v.Error.Code = e.message, "router_error", e.code
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"message":"error","type":"router_error","code":"internal"}}`)
	}
	return b
}

func (p *Proxy) fail(w http.ResponseWriter, err error) {
	var e *httpError
	if !errors.As(err, &e) {
		e = &httpError{http.StatusInternalServerError, "internal", err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_, _ = w.Write(e.body()) // the client has gone
}
