// Package meter measures how fast the host tier and engine memory exchange blocks.
package meter

import (
	"sync"
	"time"
)

// Meter measures how fast blocks were lately copied. It is safe for concurrent use; its zero value is
// ready for use.
type Meter struct {
	mu    sync.Mutex
	bytes float64
	took  time.Duration
	faded time.Time
}

const (
	// enoughBytes is what makes a measurement: less is noise.
	enoughBytes = 64 << 20
	// meterSpan is the time of copies that a measurement is of; what came before it fades.
	// Other work on the machine comes and goes in minutes, and loads copy a part of the time.
	meterSpan = 4 * time.Second
)

// Add counts a copy.
func (m *Meter) Add(bytes int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += float64(bytes)
	if m.took += took; m.took > meterSpan {
		keep := float64(meterSpan) / float64(m.took)
		m.bytes, m.took = m.bytes*keep, meterSpan
	}
}

// FadeAt gives older copies less weight, once in a second at most.
func (m *Meter) FadeAt(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.faded) >= time.Second {
		const keep = 7. / 8
		m.faded = now
		m.bytes *= keep
		m.took = time.Duration(float64(m.took) * keep)
	}
}

// BytesPerS is what one goroutine copies in a second, 0 while too little was copied.
func (m *Meter) BytesPerS() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Copies that took half the span are slow ones, however little they brought.
	if m.took == 0 || m.bytes < enoughBytes && m.took < meterSpan/2 {
		return 0
	}
	return m.bytes / m.took.Seconds()
}
