package publish

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// Source is what is published: a [disk.Store].
type Source interface {
	// Subscribe takes a snapshot and follows what happens after it.
	Subscribe(ctx context.Context) (store.Subscription, error)
	// Namespaces describes the namespaces that records belong to.
	Namespaces() []disk.NamespaceInfo
}

// eventBlocks is how many blocks one event names at most.
const eventBlocks = 1024

// Publisher publishes what a store holds.
type Publisher struct {
	opts    Options
	source  Source
	pub     *zmtp.Publisher
	replay  *zmtp.ReplayServer // nil without replay
	history *zmtp.History
	encode  batch

	views   map[connector.NamespaceDigest]*view // nil for those that are not published
	current *view                               // whose blocks are gathered
	kind    store.EventKind
	keys    []connector.Key
}

// view is a namespace that is published.
type view struct {
	shards    *feed.Shards
	blockSize int
}

// New opens the endpoints. Run has to be called.
func New(ctx context.Context, o Options, source Source) (_ *Publisher, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			if err != nil {
				_ = l.Close()
			}
		}
	}()
	listen := func(endpoint string) (net.Listener, error) {
		endpoint, err := zmtp.Offset(endpoint, o.Rank)
		if err != nil {
			return nil, err
		}
		l, err := zmtp.Listen(ctx, endpoint)
		if err == nil {
			listeners = append(listeners, l)
		}
		return l, err
	}
	p := &Publisher{opts: o, source: source, encode: batch{form: o.Hashes, medium: o.Medium, rank: o.Rank, now: time.Now}}
	if p.history, err = zmtp.NewHistory(o.History); err != nil {
		return nil, err
	}
	l, err := listen(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("publish residency: %w", err)
	}
	if p.pub, err = zmtp.NewPublisher(l, o.Server); err != nil {
		return nil, err
	}
	if o.ReplayEndpoint != "" {
		if l, err = listen(o.ReplayEndpoint); err != nil {
			return nil, fmt.Errorf("publish residency: replay: %w", err)
		}
		if p.replay, err = zmtp.NewReplayServer(l, p.history, o.Server); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Addr is where subscribers connect, ReplayAddr where replays are asked for, nil if nowhere.
func (p *Publisher) Addr() net.Addr { return p.pub.Addr() }

// ReplayAddr is where past batches are asked for; nil without replay.
func (p *Publisher) ReplayAddr() net.Addr {
	if p.replay == nil {
		return nil
	}
	return p.replay.Addr()
}

// Stats are those of the publishing socket. Published is the number that the next batch will have.
func (p *Publisher) Stats() zmtp.PublisherStats { return p.pub.Stats() }

// Run publishes until ctx ends or the store closes, which is no error.
func (p *Publisher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.pub.Run(ctx) })
	if p.replay != nil {
		g.Go(func() error { return p.replay.Run(ctx) })
	}
	g.Go(func() error {
		defer cancel()
		for ctx.Err() == nil {
			switch err := p.follow(ctx); {
			case errors.Is(err, store.ErrLagged):
				p.opts.Logger.Warn("the published residency fell behind the store and begins anew", "error", err)
			case errors.Is(err, store.ErrClosed) || ctx.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("publish residency: %w", err)
			}
		}
		return nil
	})
	return g.Wait()
}

// follow publishes a snapshot and what happens after it.
func (p *Publisher) follow(ctx context.Context) error {
	u, err := p.source.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = u.Close() }()
	p.views, p.current, p.keys = make(map[connector.NamespaceDigest]*view), nil, p.keys[:0]
	p.send(p.encode.cleared())
	if err := u.Snapshot(ctx, func(r store.Resident) error {
		p.record(store.EventStored, r.ID)
		return nil
	}); err != nil {
		return err
	}
	for {
		p.flush()
		events, err := u.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			p.record(events[i].Kind, events[i].ID)
		}
	}
}

// record notes a record, and gathers its block if that came or went with it.
func (p *Publisher) record(kind store.EventKind, id store.RecordID) {
	v, known := p.views[id.Namespace]
	if !known {
		v = p.view(id.Namespace)
		p.views[id.Namespace] = v
	}
	switch {
	case v == nil:
		return
	case kind == store.EventStored:
		if !v.shards.Stored(id.Key, id.Shard) {
			return
		}
	case !v.shards.Removed(id.Key, id.Shard):
		return
	}
	if p.current != v || p.kind != kind || len(p.keys) == eventBlocks {
		p.flush()
		p.current, p.kind = v, kind
	}
	p.keys = append(p.keys, id.Key)
}

// view describes a namespace; nil if it is not published.
func (p *Publisher) view(id connector.NamespaceDigest) *view {
	for _, n := range p.source.Namespaces() {
		if n.Digest != id {
			continue
		}
		m, err := connector.ParseManifest(n.Manifest)
		if err != nil {
			p.opts.Logger.Warn("a namespace is not published", "namespace", n.Digest, "error", err)
			return nil
		}
		if !p.opts.Accept(n.Digest, m) {
			return nil
		}
		return &view{shards: feed.NewShards(m), blockSize: m.BlockSize}
	}
	return nil
}

// flush publishes the blocks that were gathered.
func (p *Publisher) flush() {
	if len(p.keys) == 0 {
		return
	}
	if p.kind == store.EventStored {
		p.send(p.encode.stored(p.keys, p.current.blockSize))
	} else {
		p.send(p.encode.removed(p.keys))
	}
	p.keys = p.keys[:0]
}

// send numbers, keeps and publishes a message.
func (p *Publisher) send(payload []byte) {
	topic := []byte(p.opts.Topic)
	seq := p.history.Append(topic, payload)
	p.pub.Publish(topic, binary.BigEndian.AppendUint64(nil, seq), payload)
}
