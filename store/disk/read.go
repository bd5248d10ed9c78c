package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// foundRecord is where an op's record is. Its slot is pinned.
type foundRecord struct {
	ref index.Ref
	seq uint64
	g   *segment
	at  int64 // offset of the slot in the segment's file
}

// readPhase is how far an op has come; guarded by the mutex of reads.
type readPhase uint8

const (
	readQueued    readPhase = iota // no request has been made
	readIssued                     // the disk has been asked
	readVerifying                  // all bytes are there
	readAbandoned                  // reported at its deadline, requests outstanding
	readDone
)

// readBatch is one call of Read.
type readBatch struct {
	done  func(*ReadOp)
	left  int           // ops not done; guarded by the mutex of reads
	ended chan struct{} // has a token when left is 0
	timer *time.Timer
	began time.Time
}

// reads is the queue of reads. The disk is asked in the order of the queue, chunk by
// chunk, while the bytes asked for and not yet delivered stay within the budget.
type reads struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []*ReadOp
	next     int   // first op of queue that has chunks to ask for
	inFlight int64 // bytes
	backlog  int64 // bytes queued or in flight
	budget   int64
	speed    speed

	chunkBytes int
	progress   time.Time // last time that the disk delivered
	closed     bool
	calls      int // Read calls under way
	idle       sync.Cond
	batches    []*readBatch // for use again
}

func (r *reads) init(budget int64, chunkBytes int) {
	r.ready.L, r.idle.L = &r.mu, &r.mu
	r.budget, r.chunkBytes = budget, chunkBytes
}

// begin registers a call of Read.
func (r *reads) begin(n int, done func(*ReadOp), now time.Time) (*readBatch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	r.calls++
	var b *readBatch
	if k := len(r.batches); k > 0 {
		b = r.batches[k-1]
		r.batches = r.batches[:k-1]
	} else {
		b = &readBatch{ended: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	}
	b.done, b.left, b.began = done, n, now
	return b, nil
}

func (r *reads) end(b *readBatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.done = nil
	r.batches = append(r.batches, b)
	if r.calls--; r.calls == 0 {
		r.idle.Broadcast()
	}
}

// Read reads and verifies records. The disk is asked for them in the order given; Read
// returns when all are done. done is called exactly once for each op, as soon as it is
// finished, from a goroutine of the store or from Read itself; calls for different ops
// may overlap. done must not block for long.
//
// op.Err is nil only if header and payload were verified. Otherwise it matches
// [ErrGone], [ErrCorrupt], [ErrIO], [ErrTimeout] (ctx ended or [Options].ReadTimeout
// passed), [ErrInvalid] or [ErrClosed]. A buffer may still belong to the kernel after
// [ErrTimeout]: see [ReadOp.Settled].
func (s *Store) Read(ctx context.Context, ops []*ReadOp, done func(*ReadOp)) {
	if len(ops) == 0 {
		return
	}
	b, err := s.reads.begin(len(ops), done, s.opts.clock())
	if err != nil {
		for _, op := range ops {
			op.Err = err
			done(op)
		}
		return
	}
	for _, op := range ops {
		s.reads.adopt(op, b)
		if err := s.locate(op); err != nil {
			op.Err = err
			s.finishRead(op)
			continue
		}
		s.reads.enqueue(op)
	}
	s.awaitReads(ctx, b, ops)
	s.reads.end(b)
}

// adopt resets the store's part of an op.
func (r *reads) adopt(op *ReadOp, b *readBatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.Err = nil
	rd := &op.rd
	rd.batch, rd.found, rd.header = b, foundRecord{}, nil
	rd.phase, rd.asked, rd.outstanding, rd.issuedAt, rd.ioErr = readQueued, 0, 0, time.Time{}, nil
	rd.unsettled.Store(false)
}

// locate checks an op and pins its record.
func (s *Store) locate(op *ReadOp) error {
	if err := s.checkBuffer(op.Payload); err != nil {
		return err
	}
	if !s.namespaces.known(op.ID.Namespace) {
		return fmt.Errorf("namespace %d is not open: %w", op.ID.Namespace, ErrInvalid)
	}
	f, ok := s.table.Get(op.ID.internal(), true)
	if !ok {
		return ErrGone
	}
	if int(f.Bytes) != len(op.Payload) {
		s.table.Unpin(f.Ref)
		return fmt.Errorf("read of %d bytes of a record of %d: %w", len(op.Payload), f.Bytes, ErrInvalid)
	}
	g := s.space.at(f.Ref)
	op.rd.found = foundRecord{ref: f.Ref, seq: f.Seq, g: g, at: g.Offset(uint32(f.Ref - g.base))}
	return nil
}

func (r *reads) enqueue(op *ReadOp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, op)
	r.backlog += int64(format.HeaderBytes + fsio.AlignUp(len(op.Payload)))
	r.wakeOne()
}

// wakeOne wakes a reader if there is something to ask for and the budget has room. A reader
// that took or delivered a chunk goes on by itself, so that no one is woken in vain.
func (r *reads) wakeOne() {
	if r.next < len(r.queue) {
		if c := nextChunk(r.queue[r.next], r.chunkBytes); r.fits(&c) {
			r.ready.Signal()
		}
	}
}

func (r *reads) fits(c *chunk) bool { return r.inFlight == 0 || r.inFlight+c.bytes() <= r.budget }

// chunk is one request to the disk: the bytes of an op's padded payload from one offset
// up to another, and the header if it is the first.
type chunk struct {
	op       *ReadOp
	from, to int
}

func (c *chunk) bytes() int64 {
	n := int64(c.to - c.from)
	if c.from == 0 {
		n += format.HeaderBytes
	}
	return n
}

// take waits for the next chunk that the budget has room for.
func (r *reads) take(now func() time.Time) (c chunk, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.next < len(r.queue) {
			if c = nextChunk(r.queue[r.next], r.chunkBytes); r.fits(&c) {
				break
			}
		} else if r.closed && r.calls == 0 {
			return c, false
		}
		r.ready.Wait()
	}
	rd := &c.op.rd
	if rd.phase == readQueued || r.inFlight == 0 {
		t := now()
		if rd.phase == readQueued {
			rd.phase, rd.issuedAt = readIssued, t
		}
		if r.inFlight == 0 {
			r.speed.begin(t)
		}
	}
	rd.asked = c.to
	rd.outstanding++
	r.inFlight += c.bytes()
	if c.to == fsio.AlignUp(len(c.op.Payload)) {
		r.pop()
	}
	r.wakeOne()
	return c, true
}

// nextChunk keeps requests of one size: the header is part of the first.
func nextChunk(op *ReadOp, chunkBytes int) chunk {
	from, end := op.rd.asked, fsio.AlignUp(len(op.Payload))
	to := from + chunkBytes
	if end-to < chunkBytes/2 {
		to = end // no small rest
	}
	return chunk{op: op, from: from, to: min(to, end)}
}

// pop removes the first op of the queue, moving the rest up now and then.
func (r *reads) pop() {
	r.queue[r.next] = nil
	r.next++
	if r.next == len(r.queue) {
		r.queue, r.next = r.queue[:0], 0
	} else if r.next >= 1024 && r.next*2 >= len(r.queue) {
		n := copy(r.queue, r.queue[r.next:])
		clear(r.queue[n:])
		r.queue, r.next = r.queue[:n], 0
	}
}

// reader asks the disk for chunks until the store stops. It leaves verification to others,
// so that the next request is made at once.
func (s *Store) reader() {
	defer s.readers.Done()
	for {
		c, ok := s.reads.take(s.opts.clock)
		if !ok {
			return
		}
		s.readChunk(c)
	}
}

func (s *Store) readChunk(c chunk) {
	op := c.op
	padded := op.Payload[:fsio.AlignUp(len(op.Payload))]
	var err error
	s.gate.reads(1)
	if c.from == 0 {
		op.rd.header = s.headers.get()
		err = op.rd.found.g.file.ReadVec(op.rd.header.bytes, padded[:c.to], op.rd.found.at)
	} else {
		err = op.rd.found.g.file.ReadVec(padded[c.from:c.to], nil, op.rd.found.at+format.HeaderBytes+int64(c.from))
	}
	s.gate.reads(-1)
	switch s.reads.delivered(c, err, s.opts.clock()) {
	case readVerifying:
		s.verifying.push(op)
	case readAbandoned:
		s.settle(op)
	}
}

// delivered accounts for a chunk. It returns readVerifying if the op has all its bytes (or
// an error) and readAbandoned if the last request of an abandoned op ended.
func (r *reads) delivered(c chunk, err error, now time.Time) readPhase {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight -= c.bytes()
	r.backlog -= c.bytes()
	r.progress = now
	rd := &c.op.rd
	if err == nil {
		r.speed.delivered(now, c.bytes())
	} else {
		r.speed.delivered(now, 0)
	}
	if err != nil && rd.ioErr == nil {
		rd.ioErr = err
		r.drop(c.op) // what has not been asked for is not needed
	}
	rd.outstanding--
	complete := rd.asked == fsio.AlignUp(len(c.op.Payload)) || rd.ioErr != nil
	switch {
	case rd.outstanding > 0:
		return readIssued
	case rd.phase == readAbandoned:
		return readAbandoned
	case complete:
		rd.phase = readVerifying
		r.speed.record(now.Sub(rd.issuedAt))
		return readVerifying
	}
	return readIssued
}

// drop removes an op from the queue. r.mu is held.
func (r *reads) drop(op *ReadOp) {
	for i := r.next; i < len(r.queue); i++ {
		if r.queue[i] == op {
			c := chunk{op: op, from: op.rd.asked, to: fsio.AlignUp(len(op.Payload))}
			r.backlog -= c.bytes()
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return
		}
	}
}

// finishRead reports an op that the kernel is done with.
func (s *Store) finishRead(op *ReadOp) {
	s.letGo(op)
	s.report(op)
}

// letGo gives back what an op holds of the store.
func (s *Store) letGo(op *ReadOp) {
	if op.rd.found.g != nil {
		s.table.Unpin(op.rd.found.ref)
		op.rd.found.g = nil
	}
	if op.rd.header != nil {
		s.headers.put(op.rd.header)
		op.rd.header = nil
	}
}

// report calls done. The op is the caller's from then on.
func (s *Store) report(op *ReadOp) {
	s.countRead(op)
	b := op.rd.batch
	b.done(op)
	r := &s.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.left--; b.left == 0 {
		b.ended <- struct{}{}
	}
}

func (s *Store) countRead(op *ReadOp) {
	c := &s.count
	switch err := op.Err; {
	case err == nil:
		c.reads.Add(1)
		c.readBytes.Add(uint64(len(op.Payload)))
	case errors.Is(err, ErrCorrupt):
		c.corrupt.Add(1)
	case errors.Is(err, ErrMismatch):
		c.mismatched.Add(1)
	case errors.Is(err, ErrGone):
		c.gone.Add(1)
	case errors.Is(err, ErrTimeout):
		c.readTimeouts.Add(1)
	case errors.Is(err, ErrIO):
		c.readErrors.Add(1)
	}
}

// close refuses new calls of Read and waits for those under way, which have deadlines.
func (r *reads) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for r.calls > 0 {
		r.idle.Wait()
	}
	r.ready.Broadcast()
}

// depth returns the queue's length and the bytes asked of the disk.
func (r *reads) depth() (queued, inFlight int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.queue) - r.next), r.inFlight
}
