package follow

import (
	"bytes"
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
	"github.com/kvconn/kvconn/store/seal"
)

// counter is a catalog that counts.
type counter struct {
	lists, forgets atomic.Int64
}

func (c *counter) Apply(*format.List) (int, int) {
	c.lists.Add(1)
	return 0, 0
}

func (c *counter) Forget() { c.forgets.Add(1) }

// bench is a server with a proxy before it.
type bench struct {
	t      *testing.T
	server *s3mem.Server
	proxy  *s3proxy.Proxy
	log    *testlog.Text
}

func inBubble(t *testing.T, c s3mem.Conditions, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, server: s3mem.New(s3mem.Options{Conditions: c}, "bucket"), log: &testlog.Text{}}
		b.proxy = s3proxy.New(b.server)
		f(t, b)
	})
}

func (b *bench) client() *bucket.Bucket {
	b.t.Helper()
	c, err := bucket.Open(bucket.Options{
		URL: "s3://bucket", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
		Transport: s3proxy.Direct(b.proxy), Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := c.Try(b.t.Context(), format.ProbeName(format.NewWriterID()).String()); err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bench) follower(change func(*Options)) (*Follower, *counter) {
	b.t.Helper()
	c := &counter{}
	client := b.client()
	o := Options{Client: client, Catalog: c, Now: client.Now, Logger: slog.New(slog.NewTextHandler(b.log, nil))}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return f, c
}

// run runs followers until the returned function is called.
func run(ctx context.Context, all ...*Follower) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(func() { _ = f.Run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// append puts the next object of the log.
func (b *bench) append(f *Follower, n uint64) {
	b.t.Helper()
	id, _ := f.Bucket()
	data, err := (&format.List{Name: format.LogName(n), Bucket: id}).Encode(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client().Put(b.t.Context(), format.LogName(n).String(), bytes.NewReader(data), int64(len(data)), bucket.Condition{}); err != nil {
		b.t.Fatal(err)
	}
}

// head puts a head whose parts have the log up to a number, and nothing in it.
func (b *bench) head(f *Follower, last uint64) {
	b.t.Helper()
	id, _ := f.Bucket()
	data, err := format.Head{Bucket: id, Last: last}.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client().Put(b.t.Context(), format.HeadFile, bytes.NewReader(data), int64(len(data)), bucket.Condition{}); err != nil {
		b.t.Fatal(err)
	}
}

// Nodes that begin a bucket at one time agree on what it is.
func TestBegin(t *testing.T) {
	for _, c := range []s3mem.Conditions{s3mem.Honoured, s3mem.Ignored} {
		inBubble(t, c, func(t *testing.T, b *bench) {
			reader, _ := b.follower(func(o *Options) { o.ReadOnly = true })
			if err := reader.CatchUp(t.Context()); !errors.Is(err, bucket.ErrMissing) {
				t.Errorf("a reader, of an empty bucket: %v", err)
			}
			var all []*Follower
			for range 8 {
				f, _ := b.follower(nil)
				if _, ok := f.Bucket(); ok || !f.Good().IsZero() {
					t.Error("the bucket is known from the start")
				}
				all = append(all, f)
			}
			stop := run(t.Context(), append(all, reader)...)
			time.Sleep(time.Minute)
			stop()
			want, _ := reader.Bucket()
			for _, f := range all {
				if id, ok := f.Bucket(); !ok || id != want || time.Since(f.Good()) > time.Minute {
					t.Errorf("%s, %v, %v", id, ok, f.Good())
				}
			}
		})
	}
}

// Polls come less often while nothing happens, and at once when an engine matches.
func TestPolls(t *testing.T) {
	inBubble(t, s3mem.Honoured, func(t *testing.T, b *bench) {
		f, c := b.follower(nil)
		defer run(t.Context(), f)()
		time.Sleep(20 * time.Minute)
		gets := func(d time.Duration) uint64 {
			before := b.server.Counts().Get
			time.Sleep(d)
			return b.server.Counts().Get - before
		}
		// Every 30 s, and the head every minute while there is none.
		if n := gets(time.Hour); n < 120 || n > 240 {
			t.Errorf("%d requests in an idle hour", n)
		}
		b.append(f, 1)
		f.Wanted()
		time.Sleep(100 * time.Millisecond)
		if c.lists.Load() != 1 {
			t.Error("a match on an idle node does not ask for news")
		}
		busy := uint64(0)
		for range 12 {
			busy += gets(5 * time.Second)
			f.Wanted()
		}
		if busy < 10 || busy > 25 {
			t.Errorf("%d requests in a minute of matches", busy)
		}
		time.Sleep(5 * time.Minute)
		if n := gets(time.Hour); n > 240 {
			t.Errorf("%d requests in an hour, idle again", n)
		}
		if s := f.Stats(); s.Position != 1 || s.Followed != 1 || s.Newest < time.Hour {
			t.Errorf("%+v", s)
		}
	})
}

// The clock of a machine that is suspended stands still, and that of the bucket goes on: the head is read at once, since
// the log after the last position may be gone.
func TestSuspendedMachine(t *testing.T) {
	inBubble(t, s3mem.Honoured, func(t *testing.T, b *bench) {
		var ahead atomic.Int64 // the bucket's clock, of this machine's
		f, c := b.follower(func(o *Options) {
			now := o.Now
			o.Now = func() time.Time { return now().Add(time.Duration(ahead.Load())) }
		})
		defer run(t.Context(), f)()
		time.Sleep(5 * time.Second)
		b.append(f, 1)
		b.head(f, 0)
		time.Sleep(time.Minute)
		ahead.Store(int64(2 * time.Hour))
		b.head(f, 500)
		time.Sleep(40 * time.Second)
		if p, _ := f.Position(); p != 500 || c.forgets.Load() != 1 || f.Stats().Gaps != 1 {
			t.Errorf("at %d, %d times forgotten, %+v", p, c.forgets.Load(), f.Stats())
		}
		before := b.server.Counts().Get
		time.Sleep(5 * time.Minute)
		if n := b.server.Counts().Get - before; n > 20 {
			t.Errorf("%d requests in 5 minutes", n)
		}
	})
}

// early counts lists that are applied when the bucket is said to be caught up with.
type early struct {
	counter
	f *Follower
	n int
}

func (e *early) Apply(l *format.List) (int, int) {
	if !e.f.Good().IsZero() {
		e.n++
	}
	return e.counter.Apply(l)
}

// Nothing is offered, or taken for missing, before the log was followed to its end.
func TestGoodComesWithTheEndOfTheLog(t *testing.T) {
	inBubble(t, s3mem.Honoured, func(t *testing.T, b *bench) {
		writer, _ := b.follower(nil)
		if err := writer.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		const news = 100
		for n := range uint64(news) {
			b.append(writer, n+1)
		}
		e := &early{}
		f, _ := b.follower(func(o *Options) { o.Catalog = e })
		e.f = f
		select {
		case <-f.Known():
			t.Error("the bucket is known from the start")
		default:
		}
		defer run(t.Context(), f)()
		<-f.Known()
		if p, _ := f.Position(); p != news || e.n != 0 || f.Good().IsZero() {
			t.Errorf("at %d, %d lists came after that", p, e.n)
		}
	})
}

// A node without the key does nothing, and names the key. One with it does not take what is not sealed.
func TestKeys(t *testing.T) {
	inBubble(t, s3mem.Honoured, func(t *testing.T, b *bench) {
		var k seal.Key
		for i := range k {
			k[i] = byte(i*i + 3)
		}
		ring, err := seal.New(k)
		if err != nil {
			t.Fatal(err)
		}
		sealed, c := b.follower(func(o *Options) { o.Ring = ring })
		if err := sealed.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		plain, _ := b.follower(nil)
		before := b.server.Counts().Put
		if err := plain.CatchUp(t.Context()); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), seal.KeyName(k.ID())) {
			t.Errorf("without the key: %v", err)
		}
		if _, ok := plain.Bucket(); ok || b.server.Counts().Put != before {
			t.Error("the bucket is used without its key")
		}
		b.append(sealed, 1)
		if err := sealed.CatchUp(t.Context()); err != nil {
			t.Error(err)
		}
		if s := sealed.Stats(); c.lists.Load() != 0 || s.Unsealed != 1 || s.Position != 1 {
			t.Errorf("%d lists, %+v", c.lists.Load(), s)
		}
	})
}

// While the bucket does not answer Good stands still; soon after it does again there are news.
func TestOutage(t *testing.T) {
	inBubble(t, s3mem.Honoured, func(t *testing.T, b *bench) {
		f, c := b.follower(nil)
		defer run(t.Context(), f)()
		time.Sleep(time.Minute)
		b.append(f, 1)
		time.Sleep(time.Minute)
		for _, do := range []s3proxy.Effect{{Status: 503, Code: "SlowDown"}, {Reset: true}, {Delay: time.Hour}, {Status: 403, Code: "AccessDenied"}} {
			const trouble = "the bucket cannot be followed"
			told := strings.Count(b.log.String(), trouble)
			b.proxy.Play(s3proxy.Clause{Do: do})
			time.Sleep(10 * time.Minute)
			if n := strings.Count(b.log.String(), trouble) - told; n < 1 || n > 2 { // the cause, and perhaps first that nothing is sent
				t.Errorf("%d warnings in 10 minutes of %+v", n, do)
			}
			if old := time.Since(f.Good()); old < 9*time.Minute {
				t.Errorf("good %v ago, after 10 minutes of %+v", old, do)
			}
			b.proxy.Stop()
			time.Sleep(2 * time.Minute)
			if old := time.Since(f.Good()); old > time.Minute {
				t.Errorf("good %v ago, after %+v", old, do)
			}
		}
		b.append(f, 2)
		time.Sleep(time.Minute)
		if c.lists.Load() < 2 || c.forgets.Load() != 0 {
			t.Errorf("%d lists, forgotten %d times", c.lists.Load(), c.forgets.Load())
		}
	})
}
