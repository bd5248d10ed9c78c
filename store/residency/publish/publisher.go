// Package publish tells other programs what a kvconn store holds, as KV cache events in vLLM's form: over
// ZeroMQ, in numbered batches, with replays. A router that follows engines can follow a store like one more
// rank.
//
// A store knows block keys and no tokens. Its events are therefore those of vLLM's own offload tiers:
// BlockStored and BlockRemoved with hashes only, token_ids empty, no parent, medium "STORAGE". A router can use
// them if it computes kvconn's keys (connector.NextKey), or, for a namespace whose keys are the engine's own
// hashes (key scheme "engine"), if it has met the same hashes in that engine's events: the key's first 8 bytes,
// big endian, are those of the page's SHA-256, as SGLang publishes them.
//
// A block is announced when all its shards that a prefix needs are stored, and withdrawn when the first of
// them has gone. The stream begins with AllBlocksCleared and everything that is there, and does so again after
// a gap in the store's own events.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
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
	Sent    uint64 `json:"sent" metric:"sent_total" help:"Batches of KV events sent, counted once for each subscriber."`
	Dropped uint64 `json:"dropped" metric:"dropped_total" help:"Batches of KV events dropped because a subscriber was too slow, counted once for each subscriber."`
	// Failures is how often publishing broke off; Error is why it does not go on now.
	Failures uint64 `json:"failures" metric:"failures_total" help:"Times that publishing of KV events failed and had to start again."`
	Error    string `json:"error,omitempty"`
}

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

// HashForm is how a block's key is published.
type HashForm string

// The forms of hashes.
const (
	// HashUint64 is the key's first 8 bytes, big endian, as an unsigned integer: what vLLM and
	// TensorRT-LLM send by default.
	HashUint64 HashForm = "uint64"
	// HashInt64 is the same as a signed integer: what SGLang sends.
	HashInt64 HashForm = "int64"
	// HashBytes is the whole key, 16 bytes: vLLM's other form.
	HashBytes HashForm = "bytes"
)

// Options configure a [Publisher].
type Options struct {
	// Endpoint is where subscribers connect, tcp://host:port or ipc://path.
	Endpoint string
	// ReplayEndpoint is where past batches are asked for. Empty means no replay.
	ReplayEndpoint string
	// Topic is the first frame of every message. Default empty, as vLLM's.
	Topic string
	// Hashes is how keys are published. Default [HashUint64].
	Hashes HashForm
	// Accept chooses namespaces. Default all. Two that differ in bytes only (KV type, layout) have the
	// same keys, which one stream cannot tell apart.
	Accept func(digest connector.NamespaceDigest, m *connector.Manifest) bool
	// Retry is the pause before publishing begins again after it broke off. Default 5 s.
	Retry time.Duration
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Hashes = cmp.Or(o.Hashes, HashUint64)
	if o.Accept == nil {
		o.Accept = func(connector.NamespaceDigest, *connector.Manifest) bool { return true }
	}
	o.Retry = cmp.Or(o.Retry, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first option that cannot be used. Endpoints are tried by [New].
func (o *Options) Validate() error {
	switch o.Hashes {
	case HashUint64, HashInt64, HashBytes:
	default:
		return fmt.Errorf("publish: hash form %q: want %q, %q or %q", o.Hashes, HashUint64, HashInt64, HashBytes)
	}
	if len(o.Topic) > 255 || o.Retry < 0 {
		return errors.New("publish: a topic of more than 255 bytes, or a negative pause")
	}
	return nil
}
