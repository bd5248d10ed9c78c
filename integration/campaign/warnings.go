package campaign

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// warnings is a log that keeps what is said at the level of warnings and above.
type warnings struct {
	mu    sync.Mutex
	lines []string
	// atOpen is how many there were when the store had opened.
	atOpen int
}

// Enabled implements slog.Handler, as do all methods below.
func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(" " + a.String())
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, b.String())
	return nil
}

func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

func (w *warnings) WithGroup(string) slog.Handler { return w }

func (w *warnings) opened() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atOpen = len(w.lines)
}

// start are the warnings of the start.
func (w *warnings) start() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.lines[:w.atOpen]...)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.lines, "\n")
}
