package loglimit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newLog is a log of lines without times.
func newLog(out *bytes.Buffer) *slog.Logger {
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	return slog.New(New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: plain})))
}

func TestRepeatedWarningsAreWrittenAFewTimesAndCounted(t *testing.T) {
	synctest.Test(t, testRepeatedWarnings)
}

func testRepeatedWarnings(t *testing.T) {
	var out bytes.Buffer
	log := newLog(&out)
	for i := range 100 {
		log.With("engine", i).Warn("load failed", "block", i)
		log.Info("fine", "i", i)
	}
	log.Error("load failed")
	log.Warn("another")
	text := out.String()
	if n := strings.Count(text, "level=WARN msg=\"load failed\""); n != burst {
		t.Errorf("%d lines of one warning, want 5", n)
	}
	if n := strings.Count(text, "msg=fine"); n != 100 {
		t.Errorf("%d lines that are no warnings, want all 100", n)
	}
	for _, want := range []string{"level=ERROR msg=\"load failed\"", "msg=another", "engine=1 block=1"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	time.Sleep(time.Minute)
	out.Reset()
	log.Warn("load failed")
	log.Warn("load failed")
	if text := out.String(); strings.Count(text, "load failed") != 2 || strings.Count(text, "left_out=95") != 1 {
		t.Errorf("a minute later:\n%s", text)
	}
}

func TestMessagesThatAllDifferAreBounded(t *testing.T) {
	var out bytes.Buffer
	h := New(slog.NewTextHandler(&out, nil))
	log := slog.New(h).WithGroup("g")
	for i := range 3 * maxMessages {
		log.Warn(fmt.Sprint("message ", i))
	}
	if n := len(h.state.seen); n > maxMessages {
		t.Errorf("%d messages are remembered", n)
	}
	if n := strings.Count(out.String(), "\n"); n != 3*maxMessages {
		t.Errorf("%d lines, want all", n)
	}
}
