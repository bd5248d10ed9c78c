// Package testlog has a log that a test can read while it grows.
package testlog

import (
	"strings"
	"sync"
)

// Text is what was logged. The zero value is empty; it is safe for concurrent use.
type Text struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends to the log.
func (t *Text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

// String is all that was logged so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
