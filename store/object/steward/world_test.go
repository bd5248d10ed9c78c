package steward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/object/outbox"
	"github.com/kvconn/kvconn/store/seal"
)

// book is a catalog that remembers all that it was told.
type book struct {
	mu      sync.Mutex
	objects map[format.ObjectID]format.Object
	removed map[format.ObjectID]bool
	deleted map[format.ObjectID]bool
	forgets int
	lists   int
}

func newBook() *book {
	b := &book{}
	b.clear()
	return b
}

func (b *book) clear() {
	b.objects = make(map[format.ObjectID]format.Object)
	b.removed, b.deleted = make(map[format.ObjectID]bool), make(map[format.ObjectID]bool)
}

func (b *book) Apply(l *format.List) (added, removed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lists++
	for _, o := range l.Objects {
		b.objects[o.ID] = o
		added++
	}
	for _, r := range l.Removed {
		b.removed[r.Object] = true
	}
	for _, id := range l.Deleted {
		b.deleted[id] = true
	}
	return added, len(l.Removed)
}

func (b *book) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgets++
	b.clear()
}

// live are the objects that are offered.
func (b *book) live() []format.ObjectID {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := slices.DeleteFunc(slices.Collect(maps.Keys(b.objects)), func(id format.ObjectID) bool { return b.removed[id] || b.deleted[id] })
	slices.SortFunc(ids, func(a, c format.ObjectID) int { return bytes.Compare(a[:], c[:]) })
	return ids
}

// mortal is a transport that dies at a request: that one is carried out or not, but nobody hears of it.
type mortal struct {
	next   http.RoundTripper
	at     atomic.Int64 // 0: never
	n      atomic.Int64
	after  atomic.Bool
	died   func()
	asleep atomic.Bool
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	for m.asleep.Load() && r.Context().Err() == nil {
		time.Sleep(time.Second)
	}
	at := m.at.Load()
	n := m.n.Add(1)
	if at == 0 || n < at {
		return m.next.RoundTrip(r)
	}
	if m.after.Load() && n == at {
		if res, err := m.next.RoundTrip(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	m.died()
	return nil, errors.New("the node is dead")
}

// world is a bucket with nodes.
type world struct {
	t      *testing.T
	server *s3mem.Server
	proxy  *s3proxy.Proxy
	ring   *seal.Ring
	log    *testlog.Text
	nodes  []*node
}

func newWorld(t *testing.T, o s3mem.Options) *world {
	w := &world{t: t, server: s3mem.New(o, "bucket"), log: &testlog.Text{}}
	w.proxy = s3proxy.New(w.server)
	return w
}

// inWorlds runs a test in a bubble where time passes at once, with and without conditional writes.
func inWorlds(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	for name, c := range map[string]s3mem.Conditions{"conditional": s3mem.Honoured, "unconditional": s3mem.Ignored} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, s3mem.Options{Conditions: c})
				defer w.end()
				f(t, w)
			})
		})
	}
}

// end stops all nodes.
func (w *world) end() {
	for _, n := range w.nodes {
		n.stop()
	}
}

// node is a node with all that has to do with lists.
type node struct {
	w         *world
	name      string
	transport *mortal
	bucket    *bucket.Bucket
	book      *book
	outbox    *outbox.Outbox
	follower  *follow.Follower
	steward   *Steward
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	emptied   atomic.Int64
}

func (w *world) open(transport http.RoundTripper) *bucket.Bucket {
	w.t.Helper()
	b, err := bucket.Open(bucket.Options{
		URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
		Transport: transport, Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// node makes a node that does nothing yet.
func (w *world) node(name string) *node {
	w.t.Helper()
	n := &node{w: w, name: name, transport: &mortal{next: s3proxy.Direct(w.proxy)}, book: newBook()}
	n.bucket = w.open(n.transport)
	if err := n.bucket.Try(w.t.Context(), format.ProbeName(format.NewWriterID()).String()); err != nil {
		w.t.Fatal(err)
	}
	n.ctx, n.cancel = context.WithCancel(w.t.Context())
	n.transport.died = n.cancel
	logger := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
	n.outbox = outbox.New(outbox.Options{Client: n.bucket, Ring: w.ring, Stuck: func() { n.steward.Look() }, Logger: logger})
	var err error
	n.follower, err = follow.New(follow.Options{
		Client: n.bucket, Catalog: n.book, Outbox: n.outbox, Ring: w.ring, Now: n.bucket.Now, Logger: logger,
		Emptied: func() { n.emptied.Add(1) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	n.steward, err = New(Options{Client: n.bucket, Follower: n.follower, Ring: w.ring, Node: name, Now: n.bucket.Now, Logger: logger})
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes = append(w.nodes, n)
	return n
}

// start runs a node.
func (w *world) start(name string) *node {
	w.t.Helper()
	n := w.node(name)
	n.run()
	return n
}

func (n *node) run() {
	for _, f := range []func(context.Context) error{n.follower.Run, n.outbox.Run, n.steward.Run} {
		n.running.Go(func() { _ = f(n.ctx) })
	}
}

// follow runs the node's follower alone.
func (n *node) follow() { n.running.Go(func() { _ = n.follower.Run(n.ctx) }) }

// stop ends a node in order.
func (n *node) stop() {
	n.cancel()
	n.running.Wait()
}

// object makes an object with records.
func (n *node) object(records int) format.Object {
	const slot = 2
	o := format.Object{ID: n.outbox.NextID(), Shard: 1, PayloadBytes: 4096, Created: 1, Used: 1}
	o.Namespace[0] = 7
	o.Runs = []format.Run{{}}
	for i := range records {
		var k connector.Key
		copy(k[:], fmt.Sprintf("%x-%d", o.ID[:3], o.ID.Counter()*10000+uint64(i)))
		o.Records = append(o.Records, format.Record{Key: k, Start: uint16(i * slot)})
	}
	o.Bytes = uint32(records) * slot * format.Unit
	return o
}

// whole is an object as it is told of, with no bytes in the bucket.
func (n *node) whole(records int) format.Object {
	o := n.object(records)
	o.Bytes += format.Unit
	return o
}

// save puts an object into the bucket, and tells of it. It returns false if the node cannot.
func (n *node) save(records int) (format.ObjectID, bool) {
	o := n.object(records)
	id, ok := n.follower.Bucket()
	if !ok {
		return o.ID, false
	}
	data, err := o.AppendTail(make([]byte, o.Bytes), id, n.w.ring)
	if err != nil {
		n.w.t.Fatal(err)
	}
	if _, err = n.bucket.Put(n.ctx, format.DataName(o.ID).String(), bytes.NewReader(data), int64(len(data)), bucket.Condition{Absent: true}); err != nil {
		return o.ID, false
	}
	n.outbox.Add(o)
	return o.ID, true
}

func (n *node) mustSave(records int) format.ObjectID {
	n.w.t.Helper()
	id, ok := n.save(records)
	if !ok {
		n.w.t.Fatalf("%s cannot save", n.name)
	}
	return id
}

// raw is a client of the bucket for what tests do to it.
func (w *world) raw() *bucket.Bucket { return w.open(s3proxy.Direct(w.server)) }

func (w *world) list(prefix string) []bucket.Meta {
	w.t.Helper()
	m, err := w.raw().List(w.t.Context(), prefix, "", 1<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) put(name string, data []byte) {
	w.t.Helper()
	if _, err := w.raw().Put(w.t.Context(), name, bytes.NewReader(data), int64(len(data)), bucket.Condition{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(name string) []byte {
	w.t.Helper()
	body, err := w.raw().Get(w.t.Context(), name, 0, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) delete(names ...string) {
	w.t.Helper()
	if err := w.raw().Delete(w.t.Context(), names); err != nil {
		w.t.Fatal(err)
	}
}

// stewards are the nodes that hold the lease.
func (w *world) stewards() (all []*node) {
	for _, n := range w.nodes {
		if n.steward.Stats().Steward {
			all = append(all, n)
		}
	}
	return all
}

// agree checks that nodes offer the same objects.
func (w *world) agree(want []format.ObjectID, nodes ...*node) {
	w.t.Helper()
	want = slices.Clone(want)
	slices.SortFunc(want, func(a, b format.ObjectID) int { return bytes.Compare(a[:], b[:]) })
	for _, n := range nodes {
		got := n.book.live()
		if slices.Equal(got, want) {
			continue
		}
		missing, more := 0, 0
		for _, id := range want {
			if !slices.Contains(got, id) {
				missing++
			}
		}
		for _, id := range got {
			if !slices.Contains(want, id) {
				more++
			}
		}
		w.t.Errorf("%s offers %d objects, want %d: %d are missing, %d too many", n.name, len(got), len(want), missing, more)
	}
}

// joined is a node that has read what there is.
func (w *world) joined(name string) *node {
	w.t.Helper()
	n := w.node(name)
	if err := n.follower.CatchUp(n.ctx); err != nil {
		w.t.Errorf("%s: %v", name, err)
	}
	return n
}
