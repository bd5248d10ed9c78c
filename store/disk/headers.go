package disk

import (
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
)

// headerBuffer is an aligned buffer for one record header.
type headerBuffer struct{ bytes []byte }

// headerPool keeps header buffers for use again. Unlike a sync.Pool it keeps them across
// garbage collections; there are as many as records were ever in flight at one time.
type headerPool struct {
	mu   sync.Mutex
	free []*headerBuffer
}

func (p *headerPool) get() *headerBuffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		return h
	}
	return &headerBuffer{bytes: store.AlignedBuffer(format.HeaderBytes)}
}

func (p *headerPool) put(h *headerBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, h)
}
