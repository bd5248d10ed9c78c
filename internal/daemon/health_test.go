package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/disk"
)

// codes are the reasons of a verdict.
func codes(h Health) string {
	var out []string
	for _, r := range h.Reasons {
		out = append(out, r.Code)
	}
	return strings.Join(out, ",")
}

func TestHealthTurnsBadWhenAFaultPersistsAndGoodWhenItEnds(t *testing.T) {
	for _, c := range []struct {
		code       string
		fail, mend func(*observation)
	}{
		{"journal_failing", func(s *observation) { s.Barriers++; s.BarrierErrors++ }, func(s *observation) { s.Barriers++ }},
		{"reads_failing", func(s *observation) { s.ReadErrors++ }, func(s *observation) { s.Reads++ }},
		{"reads_failing", func(s *observation) { s.ReadTimeouts++ }, func(s *observation) { s.Reads++ }},
		{"reads_failing", func(s *observation) { s.Corrupt++ }, func(s *observation) { s.Reads++ }},
		{"writes_failing", func(s *observation) { s.WriteErrors++ }, func(s *observation) { s.Writes++ }},
		{"no_room", func(s *observation) { s.WritesRefused += 8 }, func(s *observation) { s.Writes++ }},
		{"engines_refused", func(s *observation) { s.namespacesFailed++ }, func(s *observation) { s.namespacesOpened++ }},
	} {
		h, now, st := newHealth(slog.New(slog.DiscardHandler)), time.Now(), observation{}
		look := func() Health {
			now = now.Add(healthInterval)
			h.observe(now, &st)
			return h.health()
		}
		look()
		c.fail(&st)
		if got := look(); !got.OK {
			t.Errorf("%s: one error makes it %+v", c.code, got)
		}
		c.fail(&st)
		look()
		c.fail(&st)
		if got := look(); got.OK || codes(got) != c.code || got.Reasons[0].Remedy == "" || got.Reasons[0].SinceS != (2*healthInterval).Seconds() {
			t.Errorf("%s: after three %+v", c.code, got)
		}
		c.mend(&st)
		if got := look(); !got.OK {
			t.Errorf("%s: mended, and still %+v", c.code, got)
		}
	}
}

func TestHealthForgetsAFaultThatNothingTriesAnyMore(t *testing.T) {
	h, now, st := newHealth(slog.New(slog.DiscardHandler)), time.Now(), observation{Stats: disk.Stats{ReadErrors: 5}}
	h.observe(now, &st)
	if h.health().OK {
		t.Fatal("five read errors and it is good")
	}
	h.observe(now.Add(forgetAfter-1), &st)
	if h.health().OK {
		t.Error("forgotten too early")
	}
	h.observe(now.Add(forgetAfter), &st)
	if !h.health().OK {
		t.Error("not forgotten")
	}
}

func TestFewErrorsAmongManySuccessesAreNoFault(t *testing.T) {
	h, now, st := newHealth(slog.New(slog.DiscardHandler)), time.Now(), observation{}
	for range 100 {
		st.ReadErrors++
		st.Reads += 10
		now = now.Add(healthInterval)
		h.observe(now, &st)
		if got := h.health(); !got.OK {
			t.Fatalf("%+v", got)
		}
	}
}

func TestWritesThatDoNotEndAreAFault(t *testing.T) {
	h, now, st := newHealth(slog.New(slog.DiscardHandler)), time.Now(), observation{Stats: disk.Stats{WriteInFlightBytes: 1}}
	h.observe(now, &st)
	h.observe(now.Add(hungAfter-1), &st)
	if !h.health().OK {
		t.Error("hung too early")
	}
	h.observe(now.Add(hungAfter), &st)
	if got := h.health(); codes(got) != "writes_hung" {
		t.Errorf("%+v", got)
	}
	st.Writes++
	h.observe(now.Add(hungAfter+1), &st)
	if got := h.health(); !got.OK {
		t.Errorf("it went on, and still %+v", got)
	}
}

func TestEveryFaultIsLoggedOnceWithItsRemedy(t *testing.T) {
	var log bytes.Buffer
	h, st := newHealth(slog.New(slog.NewTextHandler(&log, nil))), observation{Stats: disk.Stats{WriteErrors: 9}}
	now := time.Now()
	for range 3 {
		h.observe(now, &st)
		st.WriteErrors++
	}
	if n := strings.Count(log.String(), "remedy="); n != 1 || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	st.Writes += 100
	h.observe(now, &st)
	if n := strings.Count(log.String(), `level=INFO msg="saving again: the disk takes writes" code=writes_failing`); n != 1 {
		t.Errorf("the end is logged %d times:\n%s", n, &log)
	}
}

// A fault that comes and goes has a line a minute, which says how often it was not said.
func TestAFaultThatComesAndGoesDoesNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	h, st, now := newHealth(slog.New(slog.NewTextHandler(&log, nil))), observation{}, time.Now()
	const seconds, pairs = 61, 20
	for i := range seconds {
		if i%3 == 0 {
			st.WriteErrors += 3
		} else {
			st.Writes += 3
		}
		now = now.Add(time.Second)
		h.observe(now, &st)
	}
	bad, good := strings.Count(log.String(), "level=ERROR"), strings.Count(log.String(), "level=INFO")
	if bad != 2 || good != 1 || !strings.Contains(log.String(), fmt.Sprintf("left_out=%d", pairs-1)) {
		t.Errorf("%d lines that it is bad, %d that it is good again:\n%s", bad, good, &log)
	}
}

// B1: a file system that others fill below min_free is a fault once the store has had time
// to give back, and none any more when there is room.
func TestAFileSystemWithLessThanMinFreeIsAFault(t *testing.T) {
	h, now := newHealth(slog.New(slog.DiscardHandler)), time.Now()
	low := observation{Stats: disk.Stats{MinFreeBytes: 100, FreeBytes: 99, FileSystemBytes: 1000}}
	if h.observe(now, &low); !h.health().OK {
		t.Error("a moment is a fault")
	}
	h.observe(now.Add(lowAfter), &low)
	if got := h.health(); codes(got) != "disk_low" || got.Reasons[0].SinceS != lowAfter.Seconds() {
		t.Errorf("%+v", got)
	}
	low.FreeBytes = 100
	if h.observe(now.Add(lowAfter+1), &low); !h.health().OK {
		t.Errorf("there is room, and still %+v", h.health())
	}
}

func TestHealthzIs503WithReasons(t *testing.T) {
	d := &daemon{health: newHealth(slog.New(slog.DiscardHandler))}
	d.health.observe(time.Now(), &observation{Stats: disk.Stats{Barriers: 3, BarrierErrors: 3}})
	w := httptest.NewRecorder()
	d.serveHealth(w, nil)
	var got Health
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusServiceUnavailable || codes(got) != "journal_failing" {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
	w = httptest.NewRecorder()
	d.serveReady(w, nil)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("ready before it is: %d", w.Code)
	}
}
