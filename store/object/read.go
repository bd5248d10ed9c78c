package object

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
)

// Read implements [store.Reader]. All ops are settled when they are reported.
func (t *Tier) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	var known []*store.ReadOp
	for i, op := range ops {
		err := t.checkRead(op)
		if err == nil {
			if known != nil {
				known = append(known, op)
			}
			continue
		}
		if known == nil {
			known = append(make([]*store.ReadOp, 0, len(ops)), ops[:i]...)
		}
		op.Err = err
		done(op)
	}
	if known == nil {
		known = ops
	}
	if len(known) > 0 {
		t.fetcher.Read(ctx, known, func(op *store.ReadOp) {
			if op.Err == nil {
				t.probed.note(op)
			}
			done(op)
		})
	}
}

// checkRead returns why a read cannot be tried.
func (t *Tier) checkRead(op *store.ReadOp) error {
	if t.closed.Load() {
		return store.ErrClosed
	}
	if !t.knows(op.ID.Namespace) {
		return fmt.Errorf("namespace %v is not known: %w", op.ID.Namespace, store.ErrInvalid)
	}
	if n := t.catalog.PayloadBytes(op.ID.Namespace, op.ID.Shard); n != 0 && n != len(op.Payload) {
		return fmt.Errorf("read of %d bytes of a record of %d: %w", len(op.Payload), n, store.ErrInvalid)
	}
	return nil
}

// probed is a record that is known to be there, for probes.
type probed struct {
	mu    sync.Mutex
	rec   store.Record
	bytes int // 0: none
}

func (p *probed) note(op *store.ReadOp) {
	if p.mu.TryLock() { // any of those that are read will do
		p.rec, p.bytes = op.Record, len(op.Payload)
		p.mu.Unlock()
	}
}

// Probe implements [store.Tier]: the record that was read last, or the first of any object.
func (t *Tier) Probe(ctx context.Context) error {
	t.probed.mu.Lock()
	rec, bytes := t.probed.rec, t.probed.bytes
	t.probed.mu.Unlock()
	there := []bool{false}
	if bytes > 0 {
		t.catalog.Present(rec.ID.Namespace, rec.ID.Shard, []connector.Key{rec.ID.Key}, there)
	}
	if !there[0] {
		var err error
		if rec, bytes, err = t.anyRecord(ctx); err != nil {
			return fmt.Errorf("probe the object tier: %w", err)
		}
	}
	op := &store.ReadOp{Record: rec, Payload: store.AlignedBuffer(bytes)}
	t.Read(ctx, []*store.ReadOp{op}, func(*store.ReadOp) {})
	return op.Err
}

// anyRecord reads the header of an object's first record: lists have no proofs.
func (t *Tier) anyRecord(ctx context.Context) (rec store.Record, bytes int, err error) {
	if t.closed.Load() {
		return rec, 0, store.ErrClosed
	}
	var id format.ObjectID
	t.catalog.Objects(func(i catalog.Info) bool {
		if i.Offered {
			id = i.ID
		}
		return !i.Offered
	})
	if id == (format.ObjectID{}) {
		return rec, 0, store.ErrGone
	}
	b, err := t.bucket.Get(ctx, format.DataName(id).String(), 0, record.HeaderBytes)
	if err != nil {
		return rec, 0, fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	defer func() { _ = b.Close() }()
	var h record.Header
	header := make([]byte, record.HeaderBytes)
	if _, err := io.ReadFull(b, header); err != nil {
		return rec, 0, fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	if err := h.Decode(header); err != nil {
		return rec, 0, fmt.Errorf("%w: object %s: %w", store.ErrCorrupt, id, err)
	}
	rec = store.Record{ID: store.RecordID{Namespace: h.Namespace, Shard: h.Shard, Key: h.Key}, Parent: h.Parent, Proof: h.Proof}
	return rec, min(max(int(h.PayloadBytes), store.MinPayloadBytes), store.MaxPayloadBytes), nil
}
