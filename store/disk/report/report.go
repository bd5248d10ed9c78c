// Package report says how the opening of a store goes, what it found wrong, and what an
// operator should know afterwards.
package report

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Report collects what an opening finds. Its methods may be called from any goroutine.
type Report struct {
	Logger *slog.Logger

	stage       atomic.Pointer[string]
	done, total atomic.Int64

	mu sync.Mutex
	// notes are what the opening found wrong; they become one warning.
	notes []string
	more  int // notes that were left out
	// at is the place of that warning among warnings, once it has been given.
	at       int
	given    bool
	warnings []string
}

// maxNotes bounds the length of the warning.
const maxNotes = 12

// Begin says which stage of the opening begins; total is how much there is to do in it, 0 if
// that is not known.
func (r *Report) Begin(stage string, total int64) {
	r.stage.Store(&stage)
	r.done.Store(0)
	r.total.Store(total)
}

// Done adds to what is done of the stage.
func (r *Report) Done(n int) { r.done.Add(int64(n)) }

// Interval is how often progress is told.
const Interval = time.Second

// Tell calls f with the stage and how far it is, from time to time until the function it
// returns is called. f may be nil.
func (r *Report) Tell(f func(stage string, done, total int64)) (end func()) {
	if f == nil {
		return func() {}
	}
	tell := func() {
		stage := "open"
		if p := r.stage.Load(); p != nil {
			stage = *p
		}
		f(stage, r.done.Load(), r.total.Load())
	}
	tell()
	stop := make(chan struct{})
	var teller sync.WaitGroup
	teller.Go(func() {
		tick := time.NewTicker(Interval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				tell()
			}
		}
	})
	return func() {
		close(stop)
		teller.Wait()
		tell()
	}
}

// Note adds to the one warning that [Report.WarnOfNotes] gives.
func (r *Report) Note(text string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.notes) == maxNotes {
		r.more++
		return
	}
	r.notes = append(r.notes, fmt.Sprintf(text, args...))
}

// WarnOfNotes gives the one warning that says what the opening found wrong, if it did.
func (r *Report) WarnOfNotes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.Join(r.notes, "; ")
	if r.more > 0 {
		text += fmt.Sprintf("; and %d more", r.more)
	}
	if text == "" || r.given {
		return
	}
	r.Logger.Warn("store: damage was found and repaired", "what", text,
		"remedy", "none if it is once; else look for I/O errors in the kernel's log")
	r.given, r.at = true, len(r.warnings)
	r.warnings = append(r.warnings, text)
}

// Amend adds how it ended to the warning of the notes, if it was given.
func (r *Report) Amend(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.given {
		r.warnings[r.at] += "; " + fmt.Sprintf(format, args...)
	}
}

// Warn logs a warning and keeps it.
func (r *Report) Warn(text string) {
	r.Logger.Warn("store: "+text, "remedy", "see docs/operations.md, Warnings of the store")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, text)
}

// Warnings are those given since the store was opened.
func (r *Report) Warnings() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.warnings)
}

// Damage is the warning of the notes alone, if it was given.
func (r *Report) Damage() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.given {
		return nil
	}
	return []string{r.warnings[r.at]}
}
