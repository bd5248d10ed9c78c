package publish

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/store/residency"
)

// Stats say how KV events are published.
type Stats struct {
	// Endpoint and ReplayEndpoint are where subscribers connect and ask for past events.
	Endpoint       string   `json:"endpoint"`
	ReplayEndpoint string   `json:"replay_endpoint,omitempty"`
	Topic          string   `json:"topic"`
	HashForm       HashForm `json:"hash_form"`
	Subscribers    int      `json:"subscribers" metric:"subscribers" help:"Subscribers of published KV events."`
	// Batches were published; Sent and Dropped are batches times subscribers.
	Batches uint64 `json:"batches" metric:"batches_total" help:"Batches of KV events published."`
	Sent    uint64 `json:"sent" metric:"sent_total" help:"Batches times subscribers that they were sent to."`
	Dropped uint64 `json:"dropped" metric:"dropped_total" help:"Batches times subscribers that were too slow for them."`
	// Failures is how often publishing broke off; Error is why it does not go on now.
	Failures uint64 `json:"failures" metric:"failures_total" help:"How often publishing broke off."`
	Error    string `json:"error,omitempty"`
}

// add counts what a session has done.
func (s *Stats) add(z zmtp.PublisherStats) {
	s.Batches += z.Published
	s.Sent += z.Sent
	s.Dropped += z.Dropped
}

// Publisher publishes what a store holds. If that breaks off it begins again.
type Publisher struct {
	opts   Options
	source residency.Source

	mu   sync.Mutex
	now  *session // nil while there is none
	past Stats    // what former sessions have done, and the endpoints
}

// New opens the endpoints. Run has to be called.
func New(ctx context.Context, o Options, source residency.Source) (*Publisher, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &Publisher{opts: o, source: source}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	// A port that the system chose stays what it is.
	p.opts.Endpoint = chosen(o.Endpoint, p.now.pub.Addr())
	if p.now.replay != nil {
		p.opts.ReplayEndpoint = chosen(o.ReplayEndpoint, p.now.replay.Addr())
	}
	p.past = Stats{Endpoint: p.opts.Endpoint, ReplayEndpoint: p.opts.ReplayEndpoint, Topic: o.Topic, HashForm: o.Hashes}
	return p, nil
}

// chosen is an endpoint with the address that it got.
func chosen(endpoint string, a net.Addr) string {
	if a.Network() == "tcp" {
		return "tcp://" + a.String()
	}
	return endpoint
}

// open begins a session.
func (p *Publisher) open(ctx context.Context) error {
	now, err := open(ctx, &p.opts, p.source)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.past.Error = now, ""
	return nil
}

// Run publishes until ctx ends or the store closes.
func (p *Publisher) Run(ctx context.Context) {
	for {
		err := p.now.run(ctx) // no other goroutine changes now
		if ctx.Err() != nil || err == nil {
			return
		}
		for err != nil {
			p.broke(err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(p.opts.Retry):
			}
			err = p.open(ctx)
		}
	}
}

// broke notes that publishing does not go on.
func (p *Publisher) broke(err error) {
	p.opts.Logger.Error("other routers are not told what the store holds", "err", err, "retry_in", p.opts.Retry,
		"remedy", "does another process listen on publish_events or publish_replay?")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.past.add(p.now.pub.Stats())
		p.now = nil
	}
	p.past.Failures++
	p.past.Error = err.Error()
}

// Stats may be called from any goroutine.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.past
	if p.now != nil {
		now := p.now.pub.Stats()
		s.add(now)
		s.Subscribers = now.Subscribers
	}
	return s
}
