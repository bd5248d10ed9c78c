package worker

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/host"
)

// logLines is a log that can be read while it is written.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait waits for a text: the line may come behind the report.
func (l *logLines) wait(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(testWait); !strings.Contains(l.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in the log:\n%s", want, l)
		}
	}
}

func TestFailedLoadIsLoggedOnceWithItsCause(t *testing.T) {
	var log logLines
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("gone", transfer(0, 8, 9)))); err != nil {
		t.Fatal(err)
	}
	poll(t, w, 1)
	log.wait(t, "not in the store")
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "request=gone failed_blocks=2") {
		t.Errorf("%d lines, want one with the request and its blocks:\n%s", n, &log)
	}
}

func TestLateLoadIsLoggedAsSuch(t *testing.T) {
	var log logLines
	w, slow, m := hang(t, func(o *Options, _ *host.AccountOptions) {
		o.LoadTimeout, o.Logger = time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	poll(t, w, 1)
	log.wait(t, errLate.Error())
	log.wait(t, "raise load_timeout")
	wake(t, w, slow, m)
}
