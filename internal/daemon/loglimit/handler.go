// Package loglimit keeps a log readable while something fails repeatedly: it writes a few lines
// of the same warning or error per interval, and the next line says how many were left out.
// Metrics count all of them.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// burst is how many lines of one message are written in an interval: enough to see whether it
	// is one thing or several.
	burst    = 5
	interval = time.Minute
	// maxMessages bounds the messages that are remembered. Almost all messages of this program are
	// constant. If there are more, all are forgotten and counted again.
	maxMessages = 1024
)

// leftOut is the attribute that says how many equal lines before this one were not written.
const leftOut = "left_out"

// Handler is a [slog.Handler] that passes records on. Those below slog.LevelWarn pass
// always, others five a minute; two are equal if their level and message are, whatever
// their attributes. It is safe for concurrent use.
type Handler struct {
	next  slog.Handler
	state *state
}

var _ slog.Handler = (*Handler)(nil)

// New returns a handler that passes records on to next.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{seen: make(map[message]*window)}}
}

// Enabled implements [slog.Handler].
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.next.Handle(ctx, r)
	}
	n, ok := h.state.admit(message{r.Level, r.Message})
	if !ok {
		return nil
	}
	if n > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int(leftOut, n))
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler]: lines of all derived handlers count together.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{next: h.next.WithAttrs(attrs), state: h.state}
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), state: h.state}
}

// message is what makes two lines equal.
type message struct {
	level slog.Level
	text  string
}

// window counts the lines of one message since began.
type window struct {
	began            time.Time
	written, leftOut int
}

type state struct {
	mu   sync.Mutex
	seen map[message]*window
}

// admit reports whether a line may be written, and how many of its kind were left out
// since the last that was.
func (s *state) admit(m message) (leftOut int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	w := s.seen[m]
	if w == nil {
		if len(s.seen) >= maxMessages {
			clear(s.seen)
		}
		w = &window{began: now}
		s.seen[m] = w
	}
	if now.Sub(w.began) >= interval {
		leftOut = w.leftOut
		*w = window{began: now}
	}
	if w.written >= burst {
		w.leftOut++
		return 0, false
	}
	w.written++
	return leftOut, true
}
