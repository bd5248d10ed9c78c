package spans

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// match makes spans.
func match(t *testing.T, e *Engine, n int) {
	t.Helper()
	for range n {
		m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 8), Trace: recorded}
		if _, err := e.Match(t.Context(), &m, answers(connector.Offer{}, nil)); err != nil {
			t.Fatal(err)
		}
	}
}

// A collector that hangs costs spans alone: nothing waits for it, what is lost is counted, and the stop is short.
func TestACollectorThatHangsIsNotWaitedFor(t *testing.T) {
	release := make(chan struct{})
	var posts atomic.Int64
	c := collector.New(t, func(http.ResponseWriter, *http.Request) bool {
		posts.Add(1)
		<-release
		return true
	})
	defer close(release)
	var log testlog.Text
	tracer := newTracer(t, c, func(o *Options) {
		o.QueueSpans, o.BatchSpans, o.StopTimeout, o.Timeout = 10, 2, 10*time.Millisecond, time.Hour
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	e := newEngine(tracer)
	match(t, e, 2)
	wait.For(t, "a post", func() bool { return posts.Load() == 1 })
	match(t, e, 100) // would hang here
	if st := tracer.Stats(); st.Queue != 90 || st.Exported != 0 || st.Collector != 0 {
		t.Errorf("%+v", st)
	}
	tracer.Close() // and here
	if st := tracer.Stats(); *st != (Stats{Queue: 90, Collector: 12}) {
		t.Errorf("%+v", st)
	}
	if n := strings.Count(log.String(), "spans were lost"); n != 1 || !strings.Contains(log.String(), "otlp_endpoint") {
		t.Errorf("%d warnings:\n%s", n, &log)
	}
	match(t, e, 1) // after the end: nothing happens
}

// A collector that is gone costs spans alone, too.
func TestACollectorThatIsGone(t *testing.T) {
	c := collector.New(t, nil)
	c.Close()
	tracer := newTracer(t, c, nil)
	match(t, newEngine(tracer), 3)
	tracer.Close()
	if st := tracer.Stats(); *st != (Stats{Collector: 3}) {
		t.Errorf("%+v", st)
	}
}

// What the collector refuses for good is lost, as is what it refuses in part, and its reason is in the log.
func TestWhatTheCollectorRefusesIsCounted(t *testing.T) {
	var message, success []byte
	success = protowire.AppendVarint(protowire.AppendTag(success, 1, protowire.VarintType), 1)
	success = protowire.AppendString(protowire.AppendTag(success, 2, protowire.BytesType), "too old")
	message = protowire.AppendBytes(protowire.AppendTag(message, 1, protowire.BytesType), success)
	for name, tc := range map[string]struct {
		status int
		body   []byte
		want   Stats
		log    string
	}{
		"all":       {http.StatusBadRequest, nil, Stats{Collector: 2}, "400 Bad Request"},
		"one":       {http.StatusOK, message, Stats{Exported: 1, Collector: 1}, "too old"},
		"malformed": {http.StatusOK, message[:5], Stats{Exported: 2}, ""},
		"none":      {http.StatusOK, nil, Stats{Exported: 2}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := collector.New(t, func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(tc.status)
				_, _ = w.Write(tc.body)
				return true
			})
			var log testlog.Text
			tracer := newTracer(t, c, func(o *Options) {
				o.Interval, o.Logger, o.Headers = time.Hour, slog.New(slog.NewTextHandler(&log, nil)), map[string]string{"Authorization": "secret"}
			})
			match(t, newEngine(tracer), 2)
			tracer.Close()
			if st := tracer.Stats(); *st != tc.want || !strings.Contains(log.String(), tc.log) || strings.Contains(log.String(), "secret") {
				t.Errorf("%+v, log:\n%s", st, &log)
			}
		})
	}
}

// scripted is a queue whose posts end as a script says; after its end they are taken.
func scripted(t *testing.T, log *testlog.Text, script ...error) (q *queue, posts *[]time.Duration) {
	t.Helper()
	o := Options{URL: "u", Logger: slog.New(slog.NewTextHandler(log, nil))}
	o.EnsureDefaults()
	began := time.Now()
	posts = new([]time.Duration)
	return newQueue(&o, func(context.Context, []sdktrace.ReadOnlySpan) (int, error) {
		*posts = append(*posts, time.Since(began))
		if n := len(*posts); n <= len(script) {
			return 0, script[n-1]
		}
		return 0, nil
	}), posts
}

func TestAPostIsRepeatedWhileTheCollectorIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		busy := &errUnavailable{errors.New("busy"), 7 * time.Second}
		q, posts := scripted(t, &log, busy, &errUnavailable{error: errors.New("refused")})
		q.OnEnd(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := *posts; len(got) != 3 || got[0] != 2*time.Second || got[1] != 9*time.Second || got[2] != 11*time.Second {
			t.Errorf("posts at %v", got)
		}
		if st := q.stats(); st != (Stats{Exported: 1}) || log.String() != "" {
			t.Errorf("%+v\n%s", st, &log)
		}
		if err := q.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A collector that is away for an hour is warned of now and then, with all that was lost, and its return is told.
func TestLostSpansAreWarnedOfNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		script := make([]error, 60)
		for i := range script {
			script[i] = errors.New("no such collector")
		}
		q, _ := scripted(t, &log, script...)
		for range 62 {
			q.OnEnd(nil)
			time.Sleep(time.Minute)
		}
		if err := q.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		warnings, total := strings.Count(log.String(), "spans were lost"), strings.Count(log.String(), "lost=5 ")
		if warnings < 10 || warnings > 13 || total < 10 || strings.Count(log.String(), "takes spans again") != 1 {
			t.Errorf("%d warnings, %d of five:\n%s", warnings, total, &log)
		}
		if st := q.stats(); st != (Stats{Exported: 2, Collector: 60}) {
			t.Errorf("%+v", st)
		}
	})
}

// A pause between two tries does not delay the stop.
func TestAStopEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		busy := &errUnavailable{errors.New("busy"), time.Hour}
		q, _ := scripted(t, &log, busy, busy, busy)
		q.OnEnd(nil)
		time.Sleep(3 * time.Second)
		began := time.Now()
		if err := q.Shutdown(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if st := q.stats(); st != (Stats{Collector: 1}) {
			t.Errorf("%+v", st)
		}
	})
}
