package publish

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"
	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/residency"
)

// eventBlocks is how many blocks one event names at most.
const eventBlocks = 1024

// session is one attempt at publishing: the sockets, and what was published on them.
type session struct {
	opts    *Options
	source  residency.Source
	pub     *zmtp.Publisher
	replay  *zmtp.ReplayServer // nil without replay
	history *zmtp.History
	encode  batch

	views     map[connector.NamespaceDigest]*view // nil for those that are not published
	manifests residency.Manifests                 // while a snapshot is read
	current   *view                               // whose blocks are gathered
	kind      store.EventKind
	keys      []connector.Key
}

// view is a namespace that is published.
type view struct {
	shards    *residency.Shards
	blockSize int
}

func open(ctx context.Context, o *Options, source residency.Source) (*session, error) {
	s := &session{opts: o, source: source, history: zmtp.NewHistory(), encode: batch{form: o.Hashes, now: time.Now}}
	l, err := zmtp.Listen(ctx, o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("publish residency: %w", err)
	}
	s.pub = zmtp.NewPublisher(l, o.Logger)
	if o.ReplayEndpoint == "" {
		return s, nil
	}
	r, err := zmtp.Listen(ctx, o.ReplayEndpoint)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("publish residency: replay: %w", err), l.Close())
	}
	s.replay = zmtp.NewReplayServer(r, s.history, o.Logger)
	return s, nil
}

// run publishes until ctx ends or the store closes, which is no error.
func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.pub.Run(ctx) })
	if s.replay != nil {
		g.Go(func() error { return s.replay.Run(ctx) })
	}
	g.Go(func() error {
		defer cancel()
		for ctx.Err() == nil {
			switch err := s.follow(ctx); {
			case errors.Is(err, store.ErrLagged):
				s.opts.Logger.Warn("the published residency fell behind the store and begins again", "error", err)
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
func (s *session) follow(ctx context.Context) error {
	u, err := s.source.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = u.Close() }()
	s.views, s.current, s.keys = make(map[connector.NamespaceDigest]*view), nil, s.keys[:0]
	s.send(s.encode.cleared())
	s.manifests = residency.ReadManifests(s.source)
	if err := u.Snapshot(ctx, func(r store.Resident) error {
		s.record(store.EventStored, r.ID)
		return nil
	}); err != nil {
		return err
	}
	s.manifests = nil
	for {
		s.flush()
		events, err := u.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			s.record(events[i].Kind, events[i].ID)
		}
	}
}

// record notes a record, and gathers its block if that came or went with it.
func (s *session) record(kind store.EventKind, id store.RecordID) {
	v, known := s.views[id.Namespace]
	if !known {
		v = s.view(id.Namespace)
		s.views[id.Namespace] = v
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
	if s.current != v || s.kind != kind || len(s.keys) == eventBlocks {
		s.flush()
		s.current, s.kind = v, kind
	}
	s.keys = append(s.keys, id.Key)
}

// view describes a namespace; nil if it is not published.
func (s *session) view(ns connector.NamespaceDigest) *view {
	text, _ := s.manifests.Of(s.source, ns)
	m, err := connector.ParseManifest(text)
	if err != nil {
		s.opts.Logger.Warn("a namespace is not published", "namespace", ns, "error", err)
		return nil
	}
	if !s.opts.Accept(ns, m) {
		return nil
	}
	return &view{shards: residency.NewShards(m), blockSize: m.BlockSize}
}

func (s *session) flush() {
	if len(s.keys) == 0 {
		return
	}
	if s.kind == store.EventStored {
		s.send(s.encode.stored(s.keys, s.current.blockSize))
	} else {
		s.send(s.encode.removed(s.keys))
	}
	s.keys = s.keys[:0]
}

// send numbers, keeps and publishes a message.
func (s *session) send(payload []byte) {
	topic := []byte(s.opts.Topic)
	seq := s.history.Append(topic, payload)
	s.pub.Publish(topic, binary.BigEndian.AppendUint64(nil, seq), payload)
}

// medium is what events call the memory that blocks are in, and rank the data-parallel rank of all batches: a
// store has one.
const (
	medium = "STORAGE"
	rank   = 0
)

// batch encodes messages: [ts, [event], rank], with one event each.
type batch struct {
	form HashForm
	now  func() time.Time
}

// open begins a message whose event is a map of n fields.
func (e *batch) open(kind string, n uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	now := e.now()
	b = msgp.AppendFloat64(b, float64(now.Unix())+float64(now.Nanosecond())/1e9)
	b = msgp.AppendMapHeader(msgp.AppendArrayHeader(b, 1), n)
	return msgp.AppendString(msgp.AppendString(b, "type"), kind)
}

func (e *batch) close(b []byte) []byte { return msgp.AppendInt(b, rank) }

func (e *batch) cleared() []byte { return e.close(e.open("AllBlocksCleared", 1)) }

// stored says that blocks came. The fields are those that vLLM never omits.
func (e *batch) stored(keys []connector.Key, blockSize int) []byte {
	b := e.hashes(e.open("BlockStored", 8), keys)
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), 0)
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), blockSize)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), medium)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
	return e.close(b)
}

func (e *batch) removed(keys []connector.Key) []byte {
	b := e.hashes(e.open("BlockRemoved", 3), keys)
	return e.close(msgp.AppendString(msgp.AppendString(b, "medium"), medium))
}

func (e *batch) hashes(b []byte, keys []connector.Key) []byte {
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(keys)))
	for i := range keys {
		number := binary.BigEndian.Uint64(keys[i][:])
		switch e.form {
		case HashBytes:
			b = msgp.AppendBytes(b, keys[i][:])
		case HashInt64:
			b = msgp.AppendInt64(b, int64(number))
		default:
			b = msgp.AppendUint64(b, number)
		}
	}
	return b
}
