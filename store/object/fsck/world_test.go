package fsck

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	payloadBytes = 5000
	perObject    = 3 // records
)

// world is a bucket with objects and lists in it.
type world struct {
	t       *testing.T
	bucket  *bucket.Bucket
	server  *s3mem.Server
	id      format.BucketID
	writer  format.WriterID
	ring    *seal.Ring
	counter uint64
	last    uint64 // of the log
	catalog *catalog.Catalog
	applied uint64 // of the log
	client  bucket.Client

	caughtUp func() // is called as the log is followed
	// outbox
	list    format.List
	flushed int
}

func inBubble(t *testing.T, ring *seal.Ring, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, server: s3mem.New(s3mem.Options{}, "bucket"), id: format.NewBucketID(), writer: format.NewWriterID(), ring: ring}
		var err error
		w.bucket, err = bucket.Open(bucket.Options{
			URL: "s3://bucket/prefix", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
			Transport: s3proxy.Direct(w.server), Logger: slog.New(slog.DiscardHandler),
		})
		w.must(err)
		w.client = w.bucket
		w.catalog, err = catalog.New(catalog.Options{Now: w.now, Readable: func(uint16, uint8) bool { return true }})
		w.must(err)
		defer func() { w.must(w.catalog.Close()) }()
		note, err := format.NewNote(w.id, w.now(), ring).Encode()
		w.must(err)
		w.put(format.FormatFile, note)
		f(t, w)
	})
}

func (w *world) now() format.Seconds { return format.SecondsOf(time.Now()) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(name string, b []byte) {
	w.t.Helper()
	_, err := w.bucket.Put(w.t.Context(), name, bytes.NewReader(b), int64(len(b)), bucket.Condition{})
	w.must(err)
}

func (w *world) get(name string) []byte {
	w.t.Helper()
	body, err := w.bucket.Get(w.t.Context(), name, 0, 0)
	w.must(err)
	defer body.Close()
	b, err := io.ReadAll(body)
	w.must(err)
	return b
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.must(w.bucket.Delete(w.t.Context(), []string{name}))
}

// change changes a byte of an object; from its end if at is negative.
func (w *world) change(name string, at int) {
	w.t.Helper()
	b := w.get(name)
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 1
	w.put(name, b)
}

// object writes a data object.
func (w *world) object() format.Object {
	w.t.Helper()
	return w.objectOf(connector.Key{})
}

// objectOf writes a data object whose list has a parent of the first record.
func (w *world) objectOf(of connector.Key) format.Object {
	w.t.Helper()
	w.counter++
	o := format.Object{
		ID: format.NewObjectID(w.writer, w.counter), Namespace: connector.NamespaceDigest{1}, PayloadBytes: payloadBytes,
		Created: w.now(), Used: w.now(), Runs: []format.Run{{Parent: of}},
	}
	builder := record.Builder{Ring: w.ring}
	var slots []byte
	var parent connector.Key
	for i := range perObject {
		key := connector.Key{byte(w.counter), byte(i), 1}
		o.Records = append(o.Records, format.Record{Key: key, Start: uint16(len(slots) / format.Unit)})
		slot := make([]byte, 4*format.Unit)
		h := record.Header{Store: record.StoreID(o.ID), Slot: uint32(i), Seq: uint64(i) + 1, Namespace: o.Namespace, Key: key, Parent: parent}
		n := builder.BuildSlot(slot, &h, bytes.Repeat([]byte{byte(i)}, payloadBytes), 0)
		o.Needs |= uint16(h.Needs)
		slots, parent = append(slots, slot[:n]...), key
	}
	b, err := o.AppendTail(slots, w.id, w.ring)
	w.must(err)
	w.put(name(o), b)
	return o
}

func name(o format.Object) string { return format.DataName(o.ID).String() }

// write writes a list.
func (w *world) write(l *format.List) {
	w.t.Helper()
	l.Bucket, l.Writer = w.id, w.writer
	b, err := l.Encode(w.ring)
	w.must(err)
	w.put(l.Name.String(), b)
}

// log writes the next log object.
func (w *world) log(l format.List) {
	w.t.Helper()
	w.last++
	l.Name = format.LogName(w.last)
	w.write(&l)
}

// listed writes an object and its log object.
func (w *world) listed() format.Object {
	w.t.Helper()
	o := w.object()
	w.log(format.List{Objects: []format.Object{o}})
	return o
}

// catchUp applies the log to its end, gaps apart.
func (w *world) catchUp(ctx context.Context) error {
	for n := w.applied + 1; n <= w.last; n++ {
		body, err := w.bucket.Get(ctx, format.LogName(n).String(), 0, 0)
		if errors.Is(err, bucket.ErrMissing) {
			continue
		}
		w.must(err)
		b, err := io.ReadAll(body)
		body.Close()
		w.must(err)
		if l, err := format.DecodeList(b, format.LogName(n), w.id, w.ring); err == nil {
			w.catalog.Apply(l)
		}
		w.applied = n
	}
	if f := w.caughtUp; f != nil {
		w.caughtUp = nil
		f()
	}
	return nil
}

// Add is [Outbox], as are Lose and Flush.
func (w *world) Add(o format.Object) { w.list.Objects = append(w.list.Objects, o) }

func (w *world) Lose(id format.ObjectID, why format.Cause) {
	w.list.Lost = append(w.list.Lost, format.Loss{Object: id, Cause: why})
}

func (w *world) Flush(context.Context) error {
	w.flushed++
	w.list.Name = format.InName(w.writer, uint64(w.flushed))
	w.write(&w.list)
	return nil
}

func (w *world) options() Options {
	return Options{
		Client: w.client, Catalog: w.catalog, CatchUp: w.catchUp, Payload: true,
		Verifier: &Verifier{Client: w.client, Bucket: w.id, Opener: record.Opener{Ring: w.ring}},
	}
}

// check checks the bucket.
func (w *world) check(change func(*Options)) Report {
	w.t.Helper()
	o := w.options()
	if change != nil {
		change(&o)
	}
	r, err := Check(w.t.Context(), o)
	w.must(err)
	return r
}

// want checks that these things are wrong, and nothing else.
func (w *world) want(r Report, problems map[string]Verdict) {
	w.t.Helper()
	left := make(map[string]Verdict)
	for name, v := range problems {
		left[name] = v
	}
	for _, p := range r.Details {
		if left[p.Name] != p.What {
			w.t.Errorf("%s: %s (%s)", p.Name, p.What, p.Detail)
		}
		delete(left, p.Name)
	}
	for name, v := range left {
		w.t.Errorf("%s: not found to be %s", name, v)
	}
	if r.Unread != 0 {
		w.t.Errorf("not read: %v", r.Failed)
	}
}
