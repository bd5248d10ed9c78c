package worker

import (
	"sync"
	"time"
)

// CopyMeter measures how fast blocks are copied into engine memory, of late. Workers share
// one. The zero value is ready to use; it is safe for concurrent use.
type CopyMeter struct {
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

// add counts a copy.
func (m *CopyMeter) add(bytes int, took time.Duration) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += float64(bytes)
	if m.took += took; m.took > meterSpan {
		keep := float64(meterSpan) / float64(m.took)
		m.bytes, m.took = m.bytes*keep, meterSpan
	}
}

// Fade takes weight from what was measured, once in a second at most, for times without
// copies: all is forgotten within a minute.
func (m *CopyMeter) Fade() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.Sub(m.faded) >= time.Second {
		m.faded = now
		m.fade()
	}
}

func (m *CopyMeter) fade() {
	const keep = 7. / 8
	m.bytes *= keep
	m.took = time.Duration(float64(m.took) * keep)
}

// BytesPerS is what one goroutine copies in a second, 0 while too little was copied.
func (m *CopyMeter) BytesPerS() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Copies that took half the span are slow ones, however little they brought.
	if m.took == 0 || m.bytes < enoughBytes && m.took < meterSpan/2 {
		return 0
	}
	return m.bytes / m.took.Seconds()
}
