package fetch

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	objects "github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

// bench is a fetcher on a server in memory, with a proxy between and a catalog.
type bench struct {
	*Fetcher
	t       testing.TB
	server  *s3mem.Server
	proxy   *s3proxy.Proxy
	bucket  *bucket.Bucket
	log     *testlog.Text
	writer  objects.WriterID
	written uint64 // objects
	keys    uint64
	build   *record.Builder

	mu     sync.Mutex
	places map[store.RecordID]catalog.Place
	lost   map[objects.ObjectID]objects.Cause
	marked []*store.ReadOp
}

// written is a record that a test has put.
type written struct {
	store.Record
	payload []byte
	scope   connector.ScopeDigest
	place   catalog.Place
}

// newBench makes a bench with the options of a bucket and of a fetcher changed.
func newBench(t testing.TB, change func(*bucket.Options, *Options)) *bench {
	t.Helper()
	b := &bench{
		t: t, server: s3mem.New(s3mem.Options{}, "bucket"), log: &testlog.Text{}, writer: objects.NewWriterID(),
		build: &record.Builder{}, places: make(map[store.RecordID]catalog.Place), lost: make(map[objects.ObjectID]objects.Cause),
	}
	b.proxy = s3proxy.New(b.server)
	logger := slog.New(slog.NewTextHandler(b.log, nil))
	bo := bucket.Options{
		URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
		Transport: s3proxy.Direct(b.proxy), Logger: logger,
	}
	o := Options{Catalog: b, Logger: logger}
	if change != nil {
		change(&bo, &o)
	}
	var err error
	if b.bucket, err = bucket.Open(bo); err != nil {
		t.Fatal(err)
	}
	if o.Bucket == nil {
		o.Bucket = b.bucket
	}
	if b.Fetcher, err = New(o); err != nil {
		t.Fatal(err)
	}
	return b
}

// inBubble runs a test where time passes at once.
func inBubble(t *testing.T, change func(*bucket.Options, *Options), f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, change)
		f(t, b)
		b.proxy.Stop()
		b.Close()
		b.bucket.Close()
		for _, op := range b.marked {
			if i := slices.IndexFunc(op.Payload, func(c byte) bool { return c != mark }); i >= 0 {
				t.Errorf("byte %d of the buffer of op %v was written after its read", i, op.ID.Key)
			}
		}
		if s := b.Speed(); s.QueuedBytes != 0 || s.AheadBytes != 0 {
			t.Errorf("%d bytes owed, %d ahead, by a fetcher that is closed", s.QueuedBytes, s.AheadBytes)
		}
		if b.used != 0 || b.inFlight != 0 || b.speed.ranges != 0 || b.speed.flowing || b.calls != 0 {
			t.Errorf("%d connections, %d bytes in flight, %d arriving, %d calls of a fetcher that is closed", b.used, b.inFlight, b.speed.ranges, b.calls)
		}
	})
}

// Locate implements Catalog.
func (b *bench) Locate(id store.RecordID, _ int) (catalog.Place, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.places[id]
	if _, lost := b.lost[p.Object]; lost {
		return p, false
	}
	return p, ok
}

// Lost implements Catalog.
func (b *bench) Lost(o objects.ObjectID, why objects.Cause) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost[o] = why
}

func (b *bench) whyLost(o objects.ObjectID) objects.Cause {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost[o]
}

// put puts an object with n records whose payloads have that many bytes.
func (b *bench) put(n, payloadBytes int) []*written {
	b.t.Helper()
	return b.putChanged(n, payloadBytes, nil)
}

// putChanged is put with the object's bytes changed.
func (b *bench) putChanged(n, payloadBytes int, change func(object []byte) []byte) []*written {
	b.t.Helper()
	b.written++
	id := objects.NewObjectID(b.writer, b.written)
	var object []byte
	records := make([]*written, n)
	slot := make([]byte, objects.SlotBytes(payloadBytes)+seal.TagBytes)
	for i := range records {
		w := b.record(payloadBytes)
		h := record.Header{
			Store: record.StoreID(id), Slot: uint32(i), Seq: uint64(i) + 1, Namespace: w.ID.Namespace, Shard: w.ID.Shard,
			Key: w.ID.Key, Parent: w.Parent, Proof: w.Proof, Scope: w.scope,
		}
		size := b.build.BuildSlot(slot, &h, w.payload, 2)
		w.place = catalog.Place{Object: id, Ordinal: uint16(i), From: int64(len(object)), Bytes: int64(size)}
		object = append(object, slot[:size]...)
		b.mu.Lock()
		b.places[w.ID] = w.place
		b.mu.Unlock()
		records[i] = w
	}
	if change != nil {
		object = change(object)
	}
	b.putBytes(id, object)
	return records
}

func (b *bench) putBytes(id objects.ObjectID, object []byte) {
	b.t.Helper()
	if _, err := b.bucket.Put(b.t.Context(), objects.DataName(id).String(), bytes.NewReader(object), int64(len(object)), bucket.Condition{}); err != nil {
		b.t.Fatal(err)
	}
}

// record makes a record with a payload that is its own.
func (b *bench) record(payloadBytes int) *written {
	b.keys++
	w := &written{payload: make([]byte, payloadBytes)}
	w.ID.Namespace[0], w.ID.Shard = 7, 3
	binary.BigEndian.PutUint64(w.ID.Key[:], b.keys)
	binary.BigEndian.PutUint64(w.Parent[:], b.keys-1)
	binary.BigEndian.PutUint64(w.Proof[:], b.keys*31)
	w.scope[1] = byte(b.keys)
	noise := rand.NewChaCha8([32]byte{byte(b.keys), byte(b.keys >> 8), byte(b.keys >> 16)})
	_, _ = noise.Read(w.payload)
	if b.build.Chooser != nil { // numbers about 1, as bfloat16
		for i := 1; i < len(w.payload); i += 2 {
			w.payload[i] = 0x3f
		}
	}
	return w
}

// op is the read of a record.
func (w *written) op() *store.ReadOp {
	return &store.ReadOp{Record: w.Record, Payload: store.AlignedBuffer(len(w.payload)), Owner: w}
}

func opsOf(records ...*written) []*store.ReadOp {
	ops := make([]*store.ReadOp, len(records))
	for i, w := range records {
		ops[i] = w.op()
	}
	return ops
}

// read reads ops and checks what every read must keep: each op is reported once, settled, with the right
// bytes or a typed error, and its buffer is not written to afterwards.
func (b *bench) read(ctx context.Context, ops ...*store.ReadOp) {
	b.t.Helper()
	var mu sync.Mutex
	ended := make(map[*store.ReadOp][]byte)
	b.Read(ctx, ops, func(op *store.ReadOp) {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := ended[op]; twice {
			b.t.Errorf("op %v was reported twice", op.ID.Key)
		}
		if !op.Settled() {
			b.t.Errorf("op %v is not settled", op.ID.Key)
		}
		ended[op] = bytes.Clone(op.Payload)
	})
	if len(ended) != len(ops) {
		b.t.Errorf("%d of %d ops were reported", len(ended), len(ops))
	}
	for op, was := range ended {
		if !bytes.Equal(was, op.Payload) {
			b.t.Errorf("the buffer of op %v was written to after its end", op.ID.Key)
		}
		b.check(op)
		for i := range op.Payload { // it is the caller's again
			op.Payload[i] = mark
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marked = append(b.marked, ops...)
}

// mark is what buffers have after their ops have ended.
const mark = 0xa5

// check checks the result of an op.
func (b *bench) check(op *store.ReadOp) {
	b.t.Helper()
	w := op.Owner.(*written)
	if op.Err == nil && (!bytes.Equal(op.Payload, w.payload) || op.Scope != w.scope || op.From != "object") {
		b.t.Errorf("op %v: wrong bytes, scope or tier %q", op.ID.Key, op.From)
	}
	if op.Err != nil && !typed(op.Err) {
		b.t.Errorf("op %v: an error of no type: %v", op.ID.Key, op.Err)
	}
}

func typed(err error) bool {
	for _, k := range []error{store.ErrGone, store.ErrCorrupt, store.ErrIO, store.ErrTimeout, store.ErrInvalid, store.ErrClosed} {
		if is(err, k) {
			return true
		}
	}
	return false
}

// want checks the result of ops.
func want(t *testing.T, cause error, ops ...*store.ReadOp) {
	t.Helper()
	for _, op := range ops {
		if !is(op.Err, cause) {
			t.Errorf("op %v: %v, want: %v", op.ID.Key, op.Err, cause)
		}
	}
}

// took checks how long something took by the clock of the bubble.
func took(t *testing.T, began time.Time, least, most time.Duration) {
	t.Helper()
	if d := time.Since(began); d < least || d > most {
		t.Errorf("it took %v, want %v to %v", d, least, most)
	}
}

// reseal changes a header and makes its checksum right.
func reseal(header []byte, change func([]byte)) {
	change(header)
	sum := len(header) - 8
	binary.LittleEndian.PutUint64(header[sum:], xxh3.Hash(header[:sum]))
}
