package disk

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// progress says how far a stage of the opening is.
type progress struct {
	stage       atomic.Pointer[string]
	done, total atomic.Int64
}

func (p *progress) begin(stage string, total int64) {
	p.stage.Store(&stage)
	p.done.Store(0)
	p.total.Store(total)
}

// progressInterval is how often Options.Progress is called.
const progressInterval = time.Second

// reportProgress calls Options.Progress until the function it returns is called.
func (s *Store) reportProgress() (end func()) {
	if s.opts.Progress == nil {
		return func() {}
	}
	report := func() {
		stage := "open"
		if p := s.progress.stage.Load(); p != nil {
			stage = *p
		}
		s.opts.Progress(stage, s.progress.done.Load(), s.progress.total.Load())
	}
	report()
	stop := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				report()
			}
		}
	})
	return func() {
		close(stop)
		reporter.Wait()
		report()
	}
}

// notes are what an opening found wrong; they become one warning.
type notes struct {
	mu   sync.Mutex
	list []string
	more int
	// at is the place of the warning among the store's, once it has been given.
	at    int
	given bool
}

// maxNotes bounds the length of the warning.
const maxNotes = 12

// note adds to the warning of this opening.
func (s *Store) note(text string, args ...any) {
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) == maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, fmt.Sprintf(text, args...))
}

// text is the warning, or empty. n.mu is held.
func (n *notes) text() string {
	out := strings.Join(n.list, "; ")
	if n.more > 0 {
		out += fmt.Sprintf("; and %d more", n.more)
	}
	return out
}

// warnOfNotes gives the one warning that says what was found wrong.
func (s *Store) warnOfNotes() {
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	text := n.text()
	if text == "" || n.given {
		return
	}
	s.opts.Logger.Warn("store: damage was found and repaired", "what", text,
		"remedy", "none if it is once; else look for I/O errors in the kernel's log")
	s.warnMu.Lock()
	defer s.warnMu.Unlock()
	n.given, n.at = true, len(s.warnings)
	s.warnings = append(s.warnings, text)
}

// amendWarning adds how it ended to the warning that was given.
func (s *Store) amendWarning(format string, args ...any) {
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.given {
		return
	}
	s.warnMu.Lock()
	defer s.warnMu.Unlock()
	s.warnings[n.at] += "; " + fmt.Sprintf(format, args...)
}
