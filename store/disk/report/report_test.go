package report_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/disk/report"
)

func TestProgressIsToldFromTheBeginningToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(report.Report)
		var told []string
		end := r.Tell(func(stage string, done, total int64) { told = append(told, fmt.Sprint(stage, " ", done, "/", total)) })
		r.Begin("read", 10)
		r.Done(3)
		time.Sleep(report.Interval + report.Interval/2)
		r.Done(4)
		time.Sleep(report.Interval)
		r.Begin("link", 0)
		end()
		r.Done(1)
		time.Sleep(10 * report.Interval)
		if want := []string{"open 0/0", "read 3/10", "read 7/10", "link 0/0"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		r.Tell(nil)()
	})
}

// The end waits for one that is being told, so that nobody is told at two times or afterwards.
func TestProgressIsToldOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(report.Report)
		var telling atomic.Bool
		end := r.Tell(func(string, int64, int64) {
			if telling.Swap(true) {
				t.Error("two are told at one time")
			}
			time.Sleep(report.Interval / 2)
			telling.Store(false)
		})
		time.Sleep(report.Interval + report.Interval/4)
		if !telling.Load() {
			t.Error("nothing is being told")
		}
		end()
	})
}

func TestNotesBecomeOneWarning(t *testing.T) {
	var log testlog.Text
	r := &report.Report{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	r.WarnOfNotes() // there is nothing to say
	r.Amend("early")
	r.Warn("first")
	for i := range 100 {
		r.Note("note%d", i)
	}
	r.WarnOfNotes()
	r.WarnOfNotes()
	r.Note("late")
	r.WarnOfNotes()
	r.Warn("last")
	r.Amend("%d were found", 7)
	got := r.Warnings()
	if len(got) != 3 || got[0] != "first" || got[2] != "last" {
		t.Fatalf("warnings %q", got)
	}
	if w := got[1]; !strings.HasPrefix(w, "note0; note1; ") || !strings.HasSuffix(w, "note11; and 88 more; 7 were found") {
		t.Errorf("the warning of the notes is %q", w)
	}
	if n := strings.Count(log.String(), "damage was found and repaired"); n != 1 {
		t.Errorf("it was logged %d times: %s", n, log.String())
	}
	got[0] = "changed"
	if r.Warnings()[0] != "first" {
		t.Error("the warnings can be changed from outside")
	}
}

func TestIncidentBeginsAndEndsOnce(t *testing.T) {
	var i report.Incident
	if i.Ends() || i.On() {
		t.Error("an incident that has not begun")
	}
	once := func(f func() bool) int64 {
		var yes atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if f() {
					yes.Add(1)
				}
			})
		}
		all.Wait()
		return yes.Load()
	}
	for range 100 {
		if n := once(i.Begins); n != 1 || !i.On() {
			t.Fatalf("it began %d times, on %v", n, i.On())
		}
		if n := once(i.Ends); n != 1 || i.On() {
			t.Fatalf("it ended %d times, on %v", n, i.On())
		}
	}
}
