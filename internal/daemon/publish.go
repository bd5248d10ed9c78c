package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/publish"
)

// publishRetry is the pause before publishing is begun anew after it broke off.
const publishRetry = 5 * time.Second

// PublishStatus says how KV events are published.
type PublishStatus struct {
	// Endpoint and ReplayEndpoint are where subscribers connect and ask for past events.
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	Topic          string `json:"topic"`
	HashForm       string `json:"hash_form"`
	Subscribers    int    `json:"subscribers" metric:"subscribers" help:"Subscribers of published KV events."`
	// Batches were published; Sent and Dropped are batches times subscribers.
	Batches uint64 `json:"batches" metric:"batches_total" help:"Batches of KV events published."`
	Sent    uint64 `json:"sent" metric:"sent_total" help:"Batches times subscribers that they were sent to."`
	Dropped uint64 `json:"dropped" metric:"dropped_total" help:"Batches times subscribers that were too slow for them."`
	// Failures is how often publishing broke off; Error is why it does not go on now.
	Failures uint64 `json:"failures" metric:"failures_total" help:"How often publishing broke off."`
	Error    string `json:"error,omitempty"`
}

// publisher publishes what the store holds. Engines do not need it: if it breaks off it is
// begun anew, and the daemon goes on.
type publisher struct {
	opts   publish.Options
	source publish.Source
	logger *slog.Logger
	retry  time.Duration

	mu   sync.Mutex
	now  *publish.Publisher // nil while there is none
	past PublishStatus      // what those before now have done, and the endpoints
}

// openPublisher opens the endpoints of published events, if there are to be any.
func (d *daemon) openPublisher(ctx context.Context) error {
	if d.opts.Publish == nil {
		return nil
	}
	p, err := newPublisher(ctx, *d.opts.Publish, d.store, d.opts.Logger)
	if err != nil {
		return err
	}
	d.publisher = p
	d.info.Events, d.info.EventsReplay = p.past.Endpoint, p.past.ReplayEndpoint
	return nil
}

func newPublisher(ctx context.Context, o publish.Options, source publish.Source, logger *slog.Logger) (*publisher, error) {
	o.Logger, o.Server.Logger = logger, logger
	o.EnsureDefaults()
	p := &publisher{opts: o, source: source, logger: logger, retry: publishRetry}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	p.past = PublishStatus{Endpoint: o.Endpoint, ReplayEndpoint: o.ReplayEndpoint, Topic: o.Topic, HashForm: string(o.Hashes)}
	// A port that the system chose stays what it is.
	if a := p.now.Addr(); a.Network() == "tcp" {
		p.past.Endpoint = "tcp://" + a.String()
	}
	if a := p.now.ReplayAddr(); a != nil && a.Network() == "tcp" {
		p.past.ReplayEndpoint = "tcp://" + a.String()
	}
	p.opts.Endpoint, p.opts.ReplayEndpoint = p.past.Endpoint, p.past.ReplayEndpoint
	p.opts.Rank = 0 // the ports have it
	return p, nil
}

// open opens the endpoints.
func (p *publisher) open(ctx context.Context) error {
	now, err := publish.New(ctx, p.opts, p.source)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.past.Error = now, ""
	return nil
}

// run publishes until ctx ends or the store closes.
func (p *publisher) run(ctx context.Context) error {
	for {
		err := p.now.Run(ctx) // this goroutine alone changes it
		if ctx.Err() != nil || err == nil {
			return nil
		}
		for err != nil {
			p.broke(err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(p.retry):
			}
			err = p.open(ctx)
		}
	}
}

// broke notes that publishing does not go on.
func (p *publisher) broke(err error) {
	p.logger.Error("other routers are not told what the store holds", "err", err, "retry_in", p.retry,
		"remedy", "does another process listen on publish_events or publish_replay?")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.past.add(p.now.Stats())
		p.now = nil
	}
	p.past.Failures++
	p.past.Error = fmt.Sprint(err)
}

// status is nil if p is.
func (p *publisher) status() *PublishStatus {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.past
	if p.now != nil {
		now := p.now.Stats()
		s.add(now)
		s.Subscribers = now.Subscribers
	}
	return &s
}

// add counts what a publisher has done.
func (s *PublishStatus) add(z zmtp.PublisherStats) {
	s.Batches += z.Published
	s.Sent += z.Sent
	s.Dropped += z.Dropped
}
