package upload

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
)

const (
	payloadBytes = 100
	perObject    = 8 // of payloads of that size
)

// source is a first tier in memory that can export.
type source struct {
	*tiertest.Memory
	mu        sync.Mutex
	records   map[store.RecordID]store.Record
	manifests []store.NamespaceInfo
	exports   atomic.Int64 // calls
}

func (s *source) Namespaces() []store.NamespaceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.manifests)
}

func (s *source) Export(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	s.exports.Add(1)
	s.mu.Lock()
	for _, op := range ops {
		r := s.records[op.ID]
		op.Parent, op.Proof = r.Parent, r.Proof
	}
	s.mu.Unlock()
	s.Read(ctx, ops, done)
}

// target is an object tier that notes what it is given.
type target struct {
	t *testing.T

	mu       sync.Mutex
	objects  [][]store.Record
	have     map[store.RecordID]bool
	fail     func(ops []*store.WriteOp) error // refuses calls
	failOp   func(op *store.WriteOp) error    // fails ops
	held     []func()                         // reports that wait, if hold is set
	hold     bool
	takes    time.Duration
	pending  int // calls that were not reported
	most     int // of pending
	opened   int
	usage    store.Usage
	down     bool          // it takes nothing
	presents chan struct{} // Has waits for it to be closed
}

func (g *target) OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened++
	return m.Digest(), nil
}

func (g *target) CloseNamespace(connector.NamespaceDigest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened--
}

func (g *target) Ready(context.Context) error { return nil }

func (g *target) Usage() store.Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.usage
}

func (g *target) Writable() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.down
}

func (g *target) Has(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	g.mu.Lock()
	wait := g.presents
	g.mu.Unlock()
	if wait != nil {
		<-wait
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, k := range keys {
		at[i] = at[i] || g.have[store.RecordID{Namespace: ns, Shard: shard, Key: k}]
	}
}

func (g *target) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fail != nil {
		if err := g.fail(ops); err != nil {
			return 0, err
		}
	}
	var object []store.Record
	for _, op := range ops {
		if len(object) > 0 && (op.ID.Namespace != object[0].ID.Namespace || op.ID.Shard != object[0].ID.Shard) {
			g.t.Error("an object has records of several shards")
		}
		if len(op.Payload) != payloadBytes || op.Payload[0] != payload(op.ID.Key)[0] || op.Proof != proof(op.ID.Key) {
			g.t.Errorf("record %v is not what was saved", op.ID.Key)
		}
		object = append(object, op.Record)
	}
	g.pending++
	g.most = max(g.most, g.pending)
	report := func() {
		g.mu.Lock()
		g.pending--
		errs := make([]error, len(ops))
		var stored []store.Record
		for i, op := range ops {
			if g.failOp != nil {
				errs[i] = g.failOp(op)
			}
			if errs[i] == nil {
				g.have[op.ID] = true
				stored = append(stored, object[i])
			}
		}
		if len(stored) > 0 {
			g.objects = append(g.objects, stored)
		}
		g.mu.Unlock()
		for i, op := range ops {
			op.Err = errs[i]
			done(op)
		}
	}
	if g.hold {
		g.held = append(g.held, report)
	} else {
		time.AfterFunc(g.takes, report)
	}
	return len(ops), nil
}

// letGo reports what was held, and holds nothing more.
func (g *target) letGo() {
	g.mu.Lock()
	held := g.held
	g.held, g.hold = nil, false
	g.mu.Unlock()
	for _, report := range held {
		report()
	}
}

func (g *target) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// keys are those of the objects.
func (g *target) keys() (all [][]connector.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range g.objects {
		var ks []connector.Key
		for _, r := range o {
			ks = append(ks, r.ID.Key)
		}
		all = append(all, ks)
	}
	return all
}

// bench is an uploader between two such tiers.
type bench struct {
	*Uploader
	t       *testing.T
	from    *source
	to      *target
	ns      connector.NamespaceDigest
	options Options
	log     *testlog.Text
}

// inBubble runs a test where time passes at once.
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, tiertest.Options{})
		f(t, b)
		b.end()
	})
}

func newBench(t *testing.T, o tiertest.Options) *bench {
	b := &bench{
		t: t, log: &testlog.Text{},
		from: &source{Memory: tiertest.NewMemory(o), records: make(map[store.RecordID]store.Record)},
		to:   &target{t: t, have: make(map[store.RecordID]bool)},
	}
	b.options = Options{ObjectBytes: perObject * (headerBytes + store.BufferAlign), Logger: slog.New(slog.NewTextHandler(b.log, nil))}
	b.ns = b.namespace("m")
	return b
}

func (b *bench) namespace(model string) connector.NamespaceDigest {
	m := manifests.Model(model)
	ns, err := b.from.OpenNamespace(m)
	if err != nil {
		b.t.Fatal(err)
	}
	b.from.mu.Lock()
	b.from.manifests = append(b.from.manifests, store.NamespaceInfo{Digest: ns, Manifest: m.Canonical()})
	b.from.mu.Unlock()
	return ns
}

func (b *bench) start() {
	b.t.Helper()
	var err error
	if b.Uploader, err = Start(b.from, b.to, b.options); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// end closes all, and checks that nothing is held.
func (b *bench) end() {
	b.t.Helper()
	if b.Uploader != nil {
		b.to.letGo()
		ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
		defer cancel()
		_ = b.Close(ctx) // the test looks for itself
		synctest.Wait()
		if s := b.Stats(); s.MemoryBytes != 0 || s.Uploading != 0 {
			b.t.Errorf("after the end %d bytes are mapped for %d objects", s.MemoryBytes, s.Uploading)
		}
		if b.to.opened != 0 {
			b.t.Errorf("%d namespaces were not closed", b.to.opened)
		}
	}
	if err := b.from.Close(); err != nil {
		b.t.Error(err)
	}
}

// key is that of block i of a chain; block 0 has the zero key as parent.
func key(chain, i int) (k connector.Key) {
	if i >= 0 {
		binary.LittleEndian.PutUint32(k[:], uint32(chain+1))
		binary.LittleEndian.PutUint32(k[4:], uint32(i+1))
	}
	return k
}

func proof(k connector.Key) (p connector.Proof) {
	copy(p[:], k[:])
	return p
}

func payload(k connector.Key) []byte {
	b := store.AlignedBuffer(payloadBytes)
	b[0] = k[0] + 3*k[4]
	return b
}

func (b *bench) record(ns connector.NamespaceDigest, shard connector.Shard, chain, i int) store.Record {
	k := key(chain, i)
	return store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: k}, Parent: key(chain, i-1), Proof: proof(k)}
}

// save saves blocks from to before to of a chain.
func (b *bench) save(chain, from, to int) {
	b.t.Helper()
	for i := from; i < to; i++ {
		b.saveOne(b.record(b.ns, 0, chain, i))
	}
	synctest.Wait()
}

func (b *bench) saveOne(r store.Record) {
	b.t.Helper()
	b.from.mu.Lock()
	b.from.records[r.ID] = r
	b.from.mu.Unlock()
	op := &store.WriteOp{Record: r, Payload: payload(r.ID.Key)}
	reported := make(chan struct{})
	if _, err := b.from.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(reported) }); err != nil {
		b.t.Fatal(err)
	}
	if <-reported; op.Err != nil {
		b.t.Fatal(op.Err)
	}
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// chainOf are the keys of a chain.
func chainOf(chain, from, to int) (ks []connector.Key) {
	for i := from; i < to; i++ {
		ks = append(ks, key(chain, i))
	}
	return ks
}

// want compares objects.
func (b *bench) want(objects ...[]connector.Key) {
	b.t.Helper()
	got := b.to.keys()
	if len(got) != len(objects) {
		b.t.Errorf("%d objects, want %d: %v", len(got), len(objects), got)
		return
	}
	for i := range got {
		if !slices.Equal(got[i], objects[i]) {
			b.t.Errorf("object %d has %v, want %v", i, got[i], objects[i])
		}
	}
}

func (b *bench) wantStats(what string, check func(Stats) bool) {
	b.t.Helper()
	if s := b.Stats(); !check(s) {
		b.t.Errorf("%s: %+v", what, fmt.Sprintf("%+v", s))
	}
}
