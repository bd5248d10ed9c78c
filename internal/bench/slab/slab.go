// Package slab has the payload buffers of benches.
package slab

import (
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/offheap"
)

// Slab is a fixed set of payload buffers in one mapping outside the Go heap, backed by
// huge pages where the kernel gives them. Get and Put may be called concurrently.
type Slab struct {
	free    chan []byte
	mapping []byte
}

// New maps count buffers for payloads of payloadBytes each.
func New(count, payloadBytes int) (*Slab, error) {
	if count < 1 || payloadBytes < store.MinPayloadBytes || payloadBytes > store.MaxPayloadBytes {
		return nil, fmt.Errorf("slab of %d buffers of %d bytes: %w", count, payloadBytes, store.ErrInvalid)
	}
	each := store.PayloadBufferSize(payloadBytes)
	m, err := offheap.Map(count * each)
	if err != nil {
		return nil, fmt.Errorf("map slab of %d bytes: %w", count*each, err)
	}
	s := &Slab{free: make(chan []byte, count), mapping: m}
	for i := range count {
		s.free <- m[i*each : i*each+payloadBytes : (i+1)*each]
	}
	return s, nil
}

// C is the channel of free buffers: receiving takes one, and can be waited for together
// with a deadline. Give each back with [Slab.Put].
func (s *Slab) C() <-chan []byte { return s.free }

// Put gives a buffer back. The buffer must be settled (see [store.ReadOp.Settled]).
func (s *Slab) Put(b []byte) { s.free <- b[:len(b):cap(b)] }

// Close unmaps the slab if every buffer has been given back, and reports an error if not:
// the kernel may still write to a buffer that is out.
func (s *Slab) Close() error {
	if n := cap(s.free) - len(s.free); n > 0 {
		return fmt.Errorf("close slab: %d buffers are in use: %w", n, store.ErrBusy)
	}
	return offheap.Unmap(s.mapping)
}
