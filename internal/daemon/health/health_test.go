package health

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/disk"
)

// codes are the reasons of a verdict.
func codes(h State) string {
	var out []string
	for _, r := range h.Reasons {
		out = append(out, r.Code)
	}
	return strings.Join(out, ",")
}

func TestHealthTurnsBadWhenAFaultPersistsAndGoodWhenItEnds(t *testing.T) {
	for _, c := range []struct {
		code       string
		fail, mend func(*Observation)
	}{
		{"journal_failing", func(s *Observation) { s.Barriers++; s.BarrierErrors++ }, func(s *Observation) { s.Barriers++ }},
		{"reads_failing", func(s *Observation) { s.ReadErrors++ }, func(s *Observation) { s.Reads++ }},
		{"reads_failing", func(s *Observation) { s.ReadTimeouts++ }, func(s *Observation) { s.Reads++ }},
		{"reads_failing", func(s *Observation) { s.Corrupt++ }, func(s *Observation) { s.Reads++ }},
		{"writes_failing", func(s *Observation) { s.WriteErrors++ }, func(s *Observation) { s.Writes++ }},
		{"no_room", func(s *Observation) { s.WritesRefused += 8 }, func(s *Observation) { s.Writes++ }},
		{"engines_refused", func(s *Observation) { s.NamespacesFailed++ }, func(s *Observation) { s.NamespacesOpened++ }},
	} {
		h, now, st := New(slog.New(slog.DiscardHandler)), time.Now(), Observation{}
		look := func() State {
			now = now.Add(Interval)
			h.Observe(now, &st)
			return h.State()
		}
		look()
		c.fail(&st)
		if got := look(); !got.OK {
			t.Errorf("%s: one error makes it %+v", c.code, got)
		}
		c.fail(&st)
		look()
		c.fail(&st)
		if got := look(); got.OK || codes(got) != c.code || got.Reasons[0].Remedy == "" || got.Reasons[0].SinceS != (2*Interval).Seconds() {
			t.Errorf("%s: after three %+v", c.code, got)
		}
		c.mend(&st)
		if got := look(); !got.OK {
			t.Errorf("%s: mended, and still %+v", c.code, got)
		}
	}
}

func TestHealthForgetsAFaultThatNothingTriesAnyMore(t *testing.T) {
	h, now, st := New(slog.New(slog.DiscardHandler)), time.Now(), Observation{Stats: disk.Stats{ReadErrors: 5}}
	h.Observe(now, &st)
	if h.State().OK {
		t.Fatal("five read errors and it is good")
	}
	h.Observe(now.Add(forgetAfter-1), &st)
	if h.State().OK {
		t.Error("forgotten too early")
	}
	h.Observe(now.Add(forgetAfter), &st)
	if !h.State().OK {
		t.Error("not forgotten")
	}
}

func TestFewErrorsAmongManySuccessesAreNoFault(t *testing.T) {
	h, now, st := New(slog.New(slog.DiscardHandler)), time.Now(), Observation{}
	for range 100 {
		st.ReadErrors++
		st.Reads += 10
		now = now.Add(Interval)
		h.Observe(now, &st)
		if got := h.State(); !got.OK {
			t.Fatalf("%+v", got)
		}
	}
}

func TestWritesThatDoNotEndAreAFault(t *testing.T) {
	h, now, st := New(slog.New(slog.DiscardHandler)), time.Now(), Observation{Stats: disk.Stats{WriteInFlightBytes: 1}}
	h.Observe(now, &st)
	h.Observe(now.Add(hungAfter-1), &st)
	if !h.State().OK {
		t.Error("hung too early")
	}
	h.Observe(now.Add(hungAfter), &st)
	if got := h.State(); codes(got) != "writes_hung" {
		t.Errorf("%+v", got)
	}
	st.Writes++
	h.Observe(now.Add(hungAfter+1), &st)
	if got := h.State(); !got.OK {
		t.Errorf("it went on, and still %+v", got)
	}
}

func TestEveryFaultIsLoggedOnceWithItsRemedy(t *testing.T) {
	var log bytes.Buffer
	h, st := New(slog.New(slog.NewTextHandler(&log, nil))), Observation{Stats: disk.Stats{WriteErrors: 9}}
	now := time.Now()
	for range 3 {
		h.Observe(now, &st)
		st.WriteErrors++
	}
	if n := strings.Count(log.String(), "remedy="); n != 1 || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	st.Writes += 100
	h.Observe(now, &st)
	if n := strings.Count(log.String(), `level=INFO msg="saving again: the disk takes writes" code=writes_failing`); n != 1 {
		t.Errorf("the end is logged %d times:\n%s", n, &log)
	}
}

// A fault that comes and goes has a line a minute, which says how often it was not said.
func TestAFaultThatComesAndGoesDoesNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	h, st, now := New(slog.New(slog.NewTextHandler(&log, nil))), Observation{}, time.Now()
	const seconds, pairs = 61, 20
	for i := range seconds {
		if i%3 == 0 {
			st.WriteErrors += 3
		} else {
			st.Writes += 3
		}
		now = now.Add(time.Second)
		h.Observe(now, &st)
	}
	bad, good := strings.Count(log.String(), "level=ERROR"), strings.Count(log.String(), "level=INFO")
	if bad != 2 || good != 1 || !strings.Contains(log.String(), fmt.Sprintf("left_out=%d", pairs-1)) {
		t.Errorf("%d lines that it is bad, %d that it is good again:\n%s", bad, good, &log)
	}
}

// B1: a file system that others fill below min_free is a fault once the store has had time
// to give back, and none any more when there is room.
func TestAFileSystemWithLessThanMinFreeIsAFault(t *testing.T) {
	h, now := New(slog.New(slog.DiscardHandler)), time.Now()
	low := Observation{Stats: disk.Stats{Usage: disk.Usage{MinFreeBytes: 100, FreeBytes: 99, FileSystemBytes: 1000}}}
	if h.Observe(now, &low); !h.State().OK {
		t.Error("a moment is a fault")
	}
	h.Observe(now.Add(lowAfter), &low)
	if got := h.State(); codes(got) != "disk_low" || got.Reasons[0].SinceS != lowAfter.Seconds() {
		t.Errorf("%+v", got)
	}
	low.FreeBytes = 100
	if h.Observe(now.Add(lowAfter+1), &low); !h.State().OK {
		t.Errorf("there is room, and still %+v", h.State())
	}
}
