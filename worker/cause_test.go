package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/host"
)

// waitLogged waits for a text: the line may come after the report.
func waitLogged(t *testing.T, log *testlog.Text, want string) {
	t.Helper()
	for end := time.Now().Add(testWait); !strings.Contains(log.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in the log:\n%s", want, log)
		}
	}
}

func TestFailedLoadIsLoggedOnceWithItsCause(t *testing.T) {
	var log testlog.Text
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("gone", transfer(0, 8, 9)))); err != nil {
		t.Fatal(err)
	}
	poll(t, w, 1)
	waitLogged(t, &log, "not in the store")
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "request=gone failed_blocks=2") {
		t.Errorf("%d lines, want one with the request and its blocks:\n%s", n, &log)
	}
}

func TestLateLoadIsLoggedAsSuch(t *testing.T) {
	var log testlog.Text
	w, slow, m := hang(t, func(o *Options, _ *host.AccountOptions) {
		o.LoadTimeout, o.Logger = time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	poll(t, w, 1)
	waitLogged(t, &log, errLate.Error())
	waitLogged(t, &log, "raise load_timeout")
	wake(t, w, slow, m)
}

func TestLinesOfALoadNameItsTrace(t *testing.T) {
	var log testlog.Text
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Trace = func(request string) string { return map[string]string{"traced": "00-aa-bb-01"}[request] }
	})
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("traced", transfer(0, 8)), loadOf("untraced", transfer(0, 9)))); err != nil {
		t.Fatal(err)
	}
	poll(t, w, 2)
	waitLogged(t, &log, "request=traced")
	waitLogged(t, &log, "request=untraced")
	if n := strings.Count(log.String(), "traceparent="); n != 1 || !strings.Contains(log.String(), "traceparent=00-aa-bb-01") {
		t.Errorf("%d lines name a trace, want one:\n%s", n, &log)
	}
}

func TestSlowLoadIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		w := &Worker{opts: Options{LoadTimeout: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}, loads: newLoadTable()}
		for request, took := range map[string]time.Duration{"fast": 400 * time.Millisecond, "slow": 600 * time.Millisecond} {
			l := &load{w: w, request: request, began: time.Now()}
			w.loads.put(l)
			time.Sleep(took)
			w.finish(l)
		}
		if got := log.String(); strings.Contains(got, "request=fast") || !strings.Contains(got, "load was slow\" request=slow") {
			t.Errorf("want a line of the slow load alone:\n%s", got)
		}
	})
}

// The leader of a rank may be on another node, whose daemon cannot see that the rank is in another namespace: this
// one says so, once.
func TestPlanOfAnotherNamespaceIsToldOnce(t *testing.T) {
	var log testlog.Text
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	strange := connector.Plan{Namespace: connector.NamespaceDigest{1}}
	for range 2 {
		if _, err := w.Load(t.Context(), strange.Append(nil)); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("load: %v", err)
		}
		if _, err := w.Save(t.Context(), []byte("a plan of another version")); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("save: %v", err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "remedy=") {
		t.Errorf("%d warnings, want 1 with a remedy: %s", n, &log)
	}
}

// An engine whose memory is there needs no restart.
func TestRemedyOfACopierThatEnded(t *testing.T) {
	if r := remedy(fmt.Errorf("%w: %w", gpu.ErrLost, gpu.ErrAgain)); strings.Contains(r, "restart the engine") {
		t.Error(r)
	}
	if r := remedy(gpu.ErrLost); r != "restart the engine" {
		t.Error(r)
	}
}
