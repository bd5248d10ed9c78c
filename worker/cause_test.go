package worker

import (
	"log/slog"
	"strings"
	"testing"
	"time"

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
