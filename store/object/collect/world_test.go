package collect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
)

var (
	errCut   = errors.New("the node is dead")
	errLease = errors.New("another node is the steward")
)

// world is a bucket, and nodes that take turns as its steward.
type world struct {
	t       *testing.T
	server  *s3mem.Server
	id      format.BucketID
	writer  format.WriterID
	counter uint64
	steward *node // holds the lease
	log     *testlog.Text
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, server: s3mem.New(s3mem.Options{}, "bucket"), id: format.NewBucketID(), writer: format.NewWriterID(),
		log: &testlog.Text{},
	}
}

// node is a daemon: what it knows of the bucket, and its collector.
type node struct {
	*Collector
	w      *world
	bucket *bucket.Bucket
	client *cutter
	mu     sync.Mutex // guards next
	next   uint64     // object of the log to read
	cat    *catalog.Catalog
	skew   atomic.Int64
}

// node opens a node.
func (w *world) node(o Options) *node {
	w.t.Helper()
	b, err := bucket.Open(bucket.Options{
		URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
		Transport: s3proxy.Direct(w.server), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := b.Try(w.t.Context(), format.ProbeName(format.NewWriterID()).String()); err != nil {
		w.t.Fatal(err)
	}
	n := &node{w: w, bucket: b, client: &cutter{Client: b, left: -1}, next: 1}
	if n.cat, err = catalog.New(catalog.Options{Now: n.seconds}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { n.must(n.cat.Close()) })
	o.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	if n.Collector, err = New(n.client, n.cat, n, n, o); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// cutter is a client of a node that dies after some requests.
type cutter struct {
	bucket.Client
	left   int    // requests until it dies; -1: it lives
	late   bool   // the last request is carried out
	listed func() // is called once, when data objects were listed
}

// cut makes a request, unless the node has died.
func (c *cutter) cut(f func() error) error {
	switch {
	case c.left > 0:
		c.left--
	case c.left == 0:
		if c.late {
			c.late = false
			_ = f()
		}
		return errCut
	}
	return f()
}

func (c *cutter) Get(ctx context.Context, name string, from, bytes int64) (b *bucket.Body, err error) {
	err = c.cut(func() (err error) { b, err = c.Client.Get(ctx, name, from, bytes); return err })
	return b, err
}

func (c *cutter) Put(ctx context.Context, name string, data io.ReadSeeker, bytes int64, cond bucket.Condition) (m bucket.Meta, err error) {
	err = c.cut(func() (err error) { m, err = c.Client.Put(ctx, name, data, bytes, cond); return err })
	return m, err
}

func (c *cutter) List(ctx context.Context, prefix, after string, most int) (all []bucket.Meta, err error) {
	err = c.cut(func() (err error) { all, err = c.Client.List(ctx, prefix, after, most); return err })
	if prefix == format.DataPrefix && c.listed != nil {
		f := c.listed
		c.listed = nil
		f()
	}
	return all, err
}

func (c *cutter) Delete(ctx context.Context, names []string) error {
	return c.cut(func() error { return c.Client.Delete(ctx, names) })
}

// passes has the node collect each minute, and counts.
func (n *node) passes() (count *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(n.w.t.Context())
	count = new(atomic.Int64)
	go func() {
		for ctx.Err() == nil {
			if n.Pass(ctx) == nil {
				count.Add(1)
			}
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
		}
	}()
	return count, func() {
		cancel()
		synctest.Wait()
	}
}

// Merge is [Steward].
func (n *node) Merge(ctx context.Context, removed []format.Removal, deleted []format.ObjectID) error {
	if err := n.Holds(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.read(ctx); err != nil {
		return err
	}
	l := &format.List{Name: format.LogName(n.next), Bucket: n.w.id, Writer: n.w.writer, Removed: removed, Deleted: deleted}
	lists, err := n.client.List(ctx, format.InPrefix, "", 1000)
	if err != nil {
		return err
	}
	var names []string
	for _, m := range lists {
		in, err := n.list(ctx, m.Name)
		if errors.Is(err, format.ErrNewer) {
			continue
		} else if err != nil {
			return err
		}
		l.Objects = append(l.Objects, in.Objects...)
		l.Sources = append(l.Sources, format.Source{Writer: in.Writer, Sequence: in.Name.Number})
		names = append(names, m.Name)
	}
	if len(l.Objects)+len(removed)+len(deleted) == 0 {
		return nil
	}
	if err := n.put(ctx, l); err != nil {
		return err
	}
	if err := n.read(ctx); err != nil {
		return err
	}
	return n.client.Delete(ctx, names)
}

// Holds is [Steward]. The lease is a GET, and what the world says.
func (n *node) Holds(ctx context.Context) error {
	if b, err := n.client.Get(ctx, format.LeaseFile, 0, 0); err == nil {
		b.Close()
	} else if !errors.Is(err, bucket.ErrMissing) {
		return err
	}
	if n.w.steward != n {
		return errLease
	}
	return nil
}

func (n *node) put(ctx context.Context, l *format.List) error {
	b, err := l.Encode(nil)
	if err != nil {
		return err
	}
	_, err = n.client.Put(ctx, l.Name.String(), bytes.NewReader(b), int64(len(b)), bucket.Condition{Absent: true})
	return err
}

func (n *node) list(ctx context.Context, name string) (*format.List, error) {
	body, err := n.client.Get(ctx, name, 0, 0)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	parsed, err := format.ParseName(name)
	if err != nil {
		return nil, err
	}
	return format.DecodeList(b, parsed, n.w.id, nil)
}

// follow applies the log to its end.
func (n *node) follow(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.read(ctx)
}

func (n *node) read(ctx context.Context) error {
	for {
		l, err := n.list(ctx, format.LogName(n.next).String())
		if errors.Is(err, bucket.ErrMissing) {
			return nil
		} else if err != nil {
			return err
		}
		n.next++
		n.cat.Apply(l)
	}
}

// known are the objects that the node knows.
func (n *node) known() (count int) {
	n.cat.Objects(func(catalog.Info) bool { count++; return true })
	return count
}

// use says that an object was used now.
func (n *node) use(id format.ObjectID) {
	n.cat.Apply(&format.List{Name: format.InName(n.w.writer, 1), Bucket: n.w.id, Used: []format.Use{{Object: id, When: n.seconds()}}})
}

// Now is [Clock], as is Skew.
func (n *node) Now() time.Time { return n.bucket.Now() }

func (n *node) seconds() format.Seconds { return format.SecondsOf(n.Now()) }

func (n *node) Skew() time.Duration { return time.Duration(n.skew.Load()) }

// objectBytes is the size of the objects below.
const objectBytes = 8522

// upload writes a data object, and no list.
func (n *node) upload() format.Object {
	n.w.t.Helper()
	n.w.counter++
	o := format.Object{
		ID: format.NewObjectID(n.w.writer, n.w.counter), Namespace: connector.NamespaceDigest{1}, PayloadBytes: 4096,
		Created: n.seconds(), Used: n.seconds(), Runs: []format.Run{{}}, Records: []format.Record{{Key: connector.Key{byte(n.w.counter), byte(n.w.counter >> 8), 1}}},
	}
	b, err := o.AppendTail(make([]byte, 2*format.Unit), n.w.id, nil)
	if err != nil {
		n.w.t.Fatal(err)
	}
	if len(b) != objectBytes {
		n.w.t.Fatalf("an object has %d bytes", len(b))
	}
	if _, err := n.bucket.Put(n.w.t.Context(), format.DataName(o.ID).String(), bytes.NewReader(b), int64(len(b)), bucket.Condition{Absent: true}); err != nil {
		n.w.t.Fatal(err)
	}
	return o
}

// tell writes the list of a writer.
func (n *node) tell(objects ...format.Object) {
	n.w.t.Helper()
	n.w.counter++
	l := &format.List{Name: format.InName(n.w.writer, n.w.counter), Bucket: n.w.id, Writer: n.w.writer, Objects: objects}
	if err := n.put(n.w.t.Context(), l); err != nil {
		n.w.t.Fatal(err)
	}
}

// fill has objects in the log, a second apart.
func (n *node) fill(count int) (ids []format.ObjectID) {
	n.w.t.Helper()
	var objects []format.Object
	for range count {
		o := n.upload()
		objects, ids = append(objects, o), append(ids, o.ID)
		time.Sleep(time.Second)
	}
	n.tell(objects...)
	n.must(n.Merge(n.w.t.Context(), nil, nil))
	return ids
}

func (n *node) must(err error) {
	n.w.t.Helper()
	if err != nil {
		n.w.t.Fatal(err)
	}
}

// there reports whether the bytes of an object are.
func (n *node) there(id format.ObjectID) bool {
	n.w.t.Helper()
	b, err := n.bucket.Get(n.w.t.Context(), format.DataName(id).String(), 0, 0)
	if err == nil {
		b.Close()
	} else if !errors.Is(err, bucket.ErrMissing) {
		n.w.t.Fatal(err)
	}
	return err == nil
}

// want checks which objects are offered, and which are there.
func (n *node) want(what string, ids []format.ObjectID, offered, there int) {
	n.w.t.Helper()
	n.must(n.follow(n.w.t.Context()))
	var o, b int
	for _, id := range ids {
		if i, known := n.cat.Object(id); known && i.Offered {
			o++
		}
		if n.there(id) {
			b++
		}
	}
	if o != offered || b != there {
		n.w.t.Errorf("%s: %d objects are offered and %d are there, want %d and %d", what, o, b, offered, there)
	}
}

// newer gives a list a flag that nobody knows yet.
func newer(b []byte) {
	b[11] |= 2
	binary.LittleEndian.PutUint64(b[104:], xxh3.Hash(b[:104]))
	sum := format.SumOf(b[:len(b)-16])
	copy(b[len(b)-16:], sum[:])
}
