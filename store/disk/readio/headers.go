package readio

import (
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/record"
)

// Header is an aligned buffer for one record header.
type Header struct{ Bytes []byte }

// Headers keeps header buffers for use again. Unlike a sync.Pool it keeps them across
// garbage collections; there are as many as records were ever in flight at one time.
type Headers struct {
	mu   sync.Mutex
	free []*Header
}

// Get takes a buffer.
func (p *Headers) Get() *Header {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		return h
	}
	return &Header{Bytes: store.AlignedBuffer(record.HeaderBytes)}
}

// Put gives a buffer back.
func (p *Headers) Put(h *Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, h)
}
