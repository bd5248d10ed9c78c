package readio

import (
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// scratch are buffers for what is stored, where that is not the payload. It is guarded by the mutex of the
// reader.
type scratch struct {
	free [][]byte
	held int64 // bytes of the buffers in use
}

// scratchBudgets bounds the bytes in buffers, as a multiple of the budget: while some are opened the disk is
// to be kept busy with others.
const scratchBudgets = 2

// room reports whether an op may have a buffer now, if it needs one. r.mu is held.
func (r *Reader) room(op *Read) bool {
	return !r.o.Sealed || op.Stored != nil || r.scratch.held == 0 ||
		r.scratch.held+int64(fsio.AlignUp(len(op.Payload))) <= scratchBudgets*r.budget
}

// borrow gives an op its buffer. r.mu is held.
func (r *Reader) borrow(op *Read) {
	if !r.o.Sealed || op.Stored != nil {
		return
	}
	s, bytes := &r.scratch, fsio.AlignUp(len(op.Payload))
	s.held += int64(bytes)
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		if cap(b) > bytes {
			op.Stored = b[:bytes]
			return
		}
	}
	op.Stored = store.AlignedBuffer(bytes + 1)[:bytes] // there is room for a tag after it
}

// giveBack takes the buffer of an op, if it has one.
func (r *Reader) giveBack(op *Read) {
	if op.Stored == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scratch.held -= int64(len(op.Stored))
	r.scratch.free = append(r.scratch.free, op.Stored)
	op.Stored = nil
	r.wakeOne()
}

// target is where the bytes after an op's header are read to.
func (op *Read) target() []byte {
	if op.Stored != nil {
		return op.Stored
	}
	return op.Payload[:fsio.AlignUp(len(op.Payload))]
}
