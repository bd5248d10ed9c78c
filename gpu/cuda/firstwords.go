package cuda

import (
	"bytes"
	"sync"
)

// firstWordsBytes is how much of a copier's standard error is kept. A crash begins with its cause; what follows are
// stacks and registers.
const firstWordsBytes = 2048

// firstWords keeps the beginning of what is written to it, and drops the rest.
type firstWords struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (f *firstWords) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = append(f.text, b[:min(len(b), firstWordsBytes-len(f.text))]...)
	return len(b), nil
}

// line is the first line that says something.
func (f *firstWords) line() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for line := range bytes.Lines(f.text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return string(line)
		}
	}
	return ""
}
