package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
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

// reads is the queue of reads. The disk is asked in the order of the queue, chunk by
// chunk, while the bytes asked for and not yet delivered stay within the budget.
type reads struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []*read
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
	idleOps    []*read      // likewise
}

func (r *reads) init(budget int64, chunkBytes int) {
	r.ready.L, r.idle.L = &r.mu, &r.mu
	r.budget, r.chunkBytes = budget, chunkBytes
}

// Read reads and verifies records. The disk is asked for them in the order given; Read
// returns when all are done. done is called exactly once for each op, as soon as it is
// finished, from a goroutine of the store or from Read itself; calls for different ops
// may overlap. done must not block for long.
//
// op.Err is nil only if header and payload were verified. Otherwise it matches
// [store.ErrGone], [store.ErrCorrupt], [store.ErrIO], [store.ErrTimeout] (ctx ended or [Options].ReadTimeout
// passed), [store.ErrInvalid] or [store.ErrClosed]. A buffer may still belong to the kernel after
// [store.ErrTimeout]: see [store.ReadOp.Settled].
func (s *Store) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	s.read(ctx, ops, done, false)
}

func (s *Store) read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp), probe bool) {
	if len(ops) == 0 {
		return
	}
	b, err := s.reads.begin(ops, done, s.opts.clock())
	if err != nil {
		for _, op := range ops {
			op.Err = err
			done(op)
		}
		return
	}
	for _, op := range b.ops {
		op.probe = probe
		if err := s.locate(op); err != nil {
			op.Err = err
			s.finishRead(op)
			continue
		}
		s.reads.enqueue(op)
	}
	s.awaitReads(ctx, b)
	s.reads.end(b)
}

// locate checks an op and pins its record.
func (s *Store) locate(op *read) error {
	if err := s.checkBuffer(op.Payload); err != nil {
		return err
	}
	id, known := s.resolve(&op.ID)
	if op.id = id; !known {
		return fmt.Errorf("namespace %v: %w", op.ID.Namespace, errNotOpen)
	}
	f, ok := s.table.Get(op.id, true)
	if !ok {
		return store.ErrGone
	}
	if int(f.Bytes) != len(op.Payload) {
		s.table.Unpin(f.Ref)
		return fmt.Errorf("read of %d bytes of a record of %d: %w", len(op.Payload), f.Bytes, store.ErrInvalid)
	}
	g := s.space.at(f.Ref)
	op.found = foundRecord{ref: f.Ref, seq: f.Seq, g: g, at: g.Offset(uint32(f.Ref - g.base))}
	return nil
}

func (r *reads) enqueue(op *read) {
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
	op       *read
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
	rd := c.op
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
func nextChunk(op *read, chunkBytes int) chunk {
	from, end := op.asked, fsio.AlignUp(len(op.Payload))
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
		op.header = s.headers.get()
		err = op.found.g.file.ReadVec(op.header.bytes, padded[:c.to], op.found.at)
	} else {
		err = op.found.g.file.ReadVec(padded[c.from:c.to], nil, op.found.at+format.HeaderBytes+int64(c.from))
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
	rd := c.op
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
func (r *reads) drop(op *read) {
	for i := r.next; i < len(r.queue); i++ {
		if r.queue[i] == op {
			c := chunk{op: op, from: op.asked, to: fsio.AlignUp(len(op.Payload))}
			r.backlog -= c.bytes()
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return
		}
	}
}

// finishRead reports an op that the kernel is done with.
func (s *Store) finishRead(op *read) {
	s.letGo(op)
	s.reportRead(op)
}

// letGo gives back what an op holds of the store.
func (s *Store) letGo(op *read) {
	if op.found.g != nil {
		s.table.Unpin(op.found.ref)
		op.found.g = nil
	}
	if op.header != nil {
		s.headers.put(op.header)
		op.header = nil
	}
}

// reportRead calls done. The op is the caller's from then on.
func (s *Store) reportRead(op *read) {
	s.countRead(op)
	b := op.batch
	b.done(op.ReadOp)
	r := &s.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.left--; b.left == 0 {
		b.ended <- struct{}{}
	}
}

func (s *Store) countRead(op *read) {
	c := &s.count
	switch err := op.Err; {
	case err == nil:
		c.reads.Add(1)
		c.readBytes.Add(uint64(len(op.Payload)))
	case errors.Is(err, store.ErrCorrupt):
		c.corrupt.Add(1)
	case errors.Is(err, store.ErrMismatch):
		c.mismatched.Add(1)
	case errors.Is(err, store.ErrGone):
		c.gone.Add(1)
	case errors.Is(err, store.ErrTimeout):
		c.readTimeouts.Add(1)
	case errors.Is(err, store.ErrIO):
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
