package worker

import (
	"sync/atomic"
	"time"
)

// CopyMeter measures how fast blocks are copied into engine memory. Workers share one. The
// zero value is ready to use; it is safe for concurrent use and never waits.
type CopyMeter struct {
	bytes, nanos atomic.Uint64
}

// enoughBytes is what makes a measurement: less is noise.
const enoughBytes = 64 << 20

// add counts a copy.
func (m *CopyMeter) add(bytes int, took time.Duration) {
	if m == nil {
		return
	}
	m.bytes.Add(uint64(bytes))
	m.nanos.Add(uint64(took))
}

// BytesPerS is what one goroutine copies in a second, 0 while too little was copied.
func (m *CopyMeter) BytesPerS() float64 {
	bytes, nanos := m.bytes.Load(), m.nanos.Load()
	if bytes < enoughBytes || nanos == 0 {
		return 0
	}
	return float64(bytes) / time.Duration(nanos).Seconds()
}
