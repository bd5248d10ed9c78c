package object

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/collect"
	"github.com/kvconn/kvconn/store/object/format"
)

// gate holds back the answers to reads of records.
type gate struct {
	http.RoundTripper
	mu   sync.Mutex
	open chan struct{} // closed while answers pass
}

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, format.DataPrefix) {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		select {
		case <-open:
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	}
	return g.RoundTripper.RoundTrip(r)
}

func (g *gate) stall() (resume func()) {
	held := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = held
	return sync.OnceFunc(func() { close(held) })
}

// flip flips a bit of the payload of a record in the bucket.
func flip(t *testing.T, tier *Tier, id store.RecordID, payloadBytes int) {
	t.Helper()
	p, there := tier.catalog.Locate(id, payloadBytes)
	if !there {
		t.Errorf("record %v is not there", id.Key)
		return
	}
	name := format.DataName(p.Object).String()
	b, err := tier.bucket.Get(t.Context(), name, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	all, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	all[p.From+format.Unit+17] ^= 4
	if _, err := tier.bucket.Put(t.Context(), name, bytes.NewReader(all), int64(len(all)), bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
}

// quick is a clock whose hours pass in milliseconds, since what was used in one hour is as cold.
type quick struct{ start time.Time }

// Now and Skew implement [collect.Clock].
func (q quick) Now() time.Time      { return q.start.Add(time.Since(q.start) * 3_600_000) }
func (q quick) Skew() time.Duration { return 0 }

// soon has what was removed forgotten at once, on this node alone.
type soon struct{ *Tier }

func (s soon) Merge(_ context.Context, removed []format.Removal, deleted []format.ObjectID) error {
	s.catalog.Apply(&format.List{Removed: removed, Deleted: deleted})
	return nil
}

func (s soon) Holds(context.Context) error { return nil }

func TestObjectsAreATier(t *testing.T) {
	tiertest.Run(t, func(t *testing.T) *tiertest.Subject {
		const records = 60
		open := make(chan struct{})
		close(open)
		server := s3mem.New(s3mem.Options{}, "bucket")
		g := &gate{RoundTripper: s3proxy.Direct(s3proxy.New(server)), open: open}
		clock := quick{time.Now()}
		c := &cloud{T: t, server: server, proxy: s3proxy.New(server)}
		o := c.options(&testlog.Text{})
		o.Bucket.Transport, o.now, o.ListPause, o.ObjectBytes = g, clock.Now, time.Microsecond, 1<<20
		o.MaxBytes = records * (format.SlotBytes(tiertest.PayloadBytes) + 512)
		tier, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		ready, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := tier.Ready(ready); err != nil {
			t.Fatal(err)
		}
		collector, err := collect.New(tier.bucket, tier.catalog, soon{tier}, clock, collect.Options{MaxBytes: o.MaxBytes, Grace: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var collecting sync.WaitGroup
		collecting.Go(func() {
			for tier.ctx.Err() == nil {
				_ = collector.Pass(tier.ctx)
				time.Sleep(time.Millisecond)
			}
		})
		t.Cleanup(collecting.Wait)
		return &tiertest.Subject{
			Tier: tier, Capacity: records + 1, Stall: g.stall, KeptEvents: 0, AnySize: true,
			Flip: func(id store.RecordID) { flip(t, tier, id, tiertest.PayloadBytes) },
		}
	})
}
