package outbox

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// bench is an outbox at a bucket, with a proxy between.
type bench struct {
	*Outbox
	t      *testing.T
	bucket *bucket.Bucket
	proxy  *s3proxy.Proxy
	id     format.BucketID
	mu     sync.Mutex
	uses   []format.Use
	stuck  atomic.Int64
}

func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, proxy: s3proxy.New(s3mem.New(s3mem.Options{}, "bucket")), id: format.NewBucketID()}
		logger := slog.New(slog.NewTextHandler(&testlog.Text{}, nil))
		var err error
		b.bucket, err = bucket.Open(bucket.Options{
			URL: "s3://bucket", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
			Transport: s3proxy.Direct(b.proxy), Logger: logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.bucket.Try(t.Context(), "probe"); err != nil {
			t.Fatal(err)
		}
		b.Outbox = New(Options{
			Client: b.bucket, Stuck: func() { b.stuck.Add(1) }, Logger: logger,
			Uses: func() []format.Use { return b.use() },
		})
		f(t, b)
	})
}

// use sets the uses that are to be told, and returns those from before.
func (b *bench) use(u ...format.Use) []format.Use {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.uses
	b.uses = u
	return was
}

// run runs the outbox until the test ends.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(b.t.Context())
	b.t.Cleanup(cancel)
	go func() { _ = b.Run(ctx) }()
}

func (b *bench) add(n int) {
	for range n {
		o := format.Object{ID: b.NextID(), Bytes: 3 * format.Unit, PayloadBytes: 4096}
		o.Runs, o.Records = []format.Run{{}}, []format.Record{{}}
		b.Add(o)
	}
}

// there are the lists in the bucket.
func (b *bench) there() (all []*format.List) {
	b.t.Helper()
	metas, err := b.bucket.List(b.t.Context(), format.InPrefix, "", 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range metas {
		name, err := format.ParseName(m.Name)
		if err != nil {
			b.t.Fatal(err)
		}
		body, err := b.bucket.Get(b.t.Context(), m.Name, 0, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		data := make([]byte, body.Length)
		for n := 0; n < len(data); {
			i, err := body.Read(data[n:])
			if err != nil && n+i < len(data) {
				b.t.Fatal(err)
			}
			n += i
		}
		_ = body.Close()
		l, err := format.DecodeList(data, name, b.id, nil)
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// Lists are put at a pace, with all that has come meanwhile.
func TestPace(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run()
		b.add(1)
		time.Sleep(time.Second)
		if len(b.there()) != 0 {
			t.Error("a list in a bucket that is not known")
		}
		if err := b.Flush(t.Context()); !errors.Is(err, ErrUnknownBucket) {
			t.Errorf("%v", err)
		}
		b.Begin(b.id)
		for range 100 {
			b.add(1)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		lists, objects := b.there(), 0
		for _, l := range lists {
			objects += len(l.Objects)
		}
		if objects != 101 || len(lists) < 4 || len(lists) > 7 {
			t.Errorf("%d objects in %d lists", objects, len(lists))
		}
		b.add(1)
		b.Lose(format.ObjectID{1}, format.CauseLost)
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		// The first of them may have a list of its own: after a pause it is put at once.
		if n := len(b.there()) - len(lists); n < 1 || n > 2 || b.Stats().Waiting != len(lists)+n {
			t.Errorf("%d lists more after a flush: %+v", n, b.Stats())
		}
	})
}

// Uses alone are put every 10 minutes, and else with what is put anyway.
func TestUses(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run()
		b.Begin(b.id)
		b.use(format.Use{Object: format.ObjectID{1}, When: 1})
		time.Sleep(5 * time.Minute)
		if len(b.there()) != 0 {
			t.Error("a list with nothing but uses came early")
		}
		time.Sleep(8 * time.Minute)
		if l := b.there(); len(l) != 1 || len(l[0].Used) != 1 {
			t.Errorf("%d lists", len(l))
		}
		b.use(format.Use{Object: format.ObjectID{2}, When: 1})
		b.add(1)
		time.Sleep(10 * time.Second)
		if n := len(b.there()); n != 2 {
			t.Errorf("%d lists", n)
		}
	})
}

// A list that the log does not have, and that is not there any more, is put again; others are not.
func TestPutAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run()
		b.Begin(b.id)
		b.add(1)
		time.Sleep(30 * time.Second)
		if b.stuck.Load() == 0 {
			t.Error("nobody was told that the list waits")
		}
		first := b.there()[0]
		remove := func() {
			if err := b.bucket.Delete(t.Context(), []string{first.Name.String()}); err != nil {
				t.Error(err)
			}
		}
		remove()
		time.Sleep(2 * time.Minute)
		if len(b.there()) != 1 || b.Stats().Again != 1 {
			t.Errorf("%+v", b.Stats())
		}
		sources := []format.Source{{Writer: first.Name.Writer, Sequence: first.Name.Number}}
		b.Logged(sources)
		remove()
		time.Sleep(5 * time.Minute)
		if len(b.there()) != 0 || b.Stats().Waiting != 0 || b.Stats().Writers != 1 {
			t.Errorf("%+v", b.Stats())
		}
		// The log was written twice, and the list is in neither.
		b.Unlogged(sources)
		time.Sleep(2 * time.Minute)
		if len(b.there()) != 1 || b.Stats().Again != 2 {
			t.Errorf("%+v", b.Stats())
		}
		b.Logged(sources)
		time.Sleep(time.Hour)
		if s := b.Stats(); s.Waiting != 0 || s.Writers != 0 || len(b.lists) != 0 || b.kept != 0 {
			t.Errorf("%+v, %d lists, %d bytes", s, len(b.lists), b.kept)
		}
	})
}

// Two writers with one id: the second takes another, and tells all under that.
func TestCollision(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.Begin(b.id)
		b.add(1)
		was := b.Writer()
		name := format.InName(was, 1).String()
		if _, err := b.bucket.Put(t.Context(), name, strings.NewReader("another"), 7, bucket.Condition{}); err != nil {
			t.Fatal(err)
		}
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if err := b.bucket.Delete(t.Context(), []string{name}); err != nil {
			t.Error(err)
		}
		if l := b.there(); len(l) != 1 || l[0].Writer != b.Writer() || b.Writer() == was || len(l[0].Objects) != 1 {
			t.Errorf("%d lists of %s, was %s", len(l), b.Writer(), was)
		}
		if id := b.NextID(); id.Writer() != b.Writer() {
			t.Errorf("an object of %s", id.Writer())
		}
	})
}

// What a bucket that fails does not take is told when it works again, once.
func TestFaults(t *testing.T) {
	for name, fault := range map[string]s3proxy.Effect{"503": {Status: 503, Code: "SlowDown"}, "reset": {Reset: true}, "lost": {Lost: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.run()
				b.Begin(b.id)
				b.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Until: 3 * time.Minute, Do: fault})
				b.add(3)
				time.Sleep(10 * time.Minute)
				objects := 0
				for _, l := range b.there() {
					objects += len(l.Objects)
				}
				if objects != 3 {
					t.Errorf("%d objects", objects)
				}
			})
		})
	}
}

// More than fits into a list goes into several; more than fits into memory is dropped, and counted.
func TestBounds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.Begin(b.id)
		b.add(30_000)
		if err := b.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		objects := 0
		for _, l := range b.there() {
			objects += len(l.Objects)
		}
		if objects != 30_000 {
			t.Errorf("%d objects", objects)
		}
		b.Begin(format.NewBucketID())
		if s := b.Stats(); s.Waiting != 0 || s.Dropped != 0 || b.kept+b.pending != 0 {
			t.Errorf("%+v, %d bytes", s, b.kept+b.pending)
		}
		for i := range maxKeptBytes/smallCost + 10 {
			b.Lose(format.ObjectID{byte(i), byte(i >> 8), byte(i >> 16)}, format.CauseLost)
		}
		if s := b.Stats(); s.Dropped != 10 {
			t.Errorf("%+v", s)
		}
	})
}
