// Package readio reads records from disk: one queue that asks for chunks within a budget of bytes,
// deadlines, the speed of the disk, and the gate by which reads go before writes.
package readio

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/queue"
	"github.com/kvconn/kvconn/store/record"
)

// Options are what a [Reader] works with.
type Options struct {
	// Budget bounds the bytes asked of the disk at one time, ChunkBytes one request.
	Budget     int64
	ChunkBytes int
	// Timeout is how long one record may take from its first request to the disk.
	Timeout time.Duration
	// Sealed says that what is stored is not the payload: it is read into [Read].Stored.
	Sealed  bool
	Clock   func() time.Time
	Gate    *Gate
	Headers *Headers
	Records Records
}

// phase is how far an op has come; guarded by the mutex of the reader.
type phase uint8

const (
	queued    phase = iota // no request has been made
	issued                 // the disk has been asked
	verifying              // all bytes are there
	abandoned              // reported at its deadline, requests outstanding
	done
)

// Reader is the queue of reads. The disk is asked in the order of the queue, chunk by
// chunk, while the bytes asked for and not yet delivered stay within the budget.
type Reader struct {
	o        Options
	mu       sync.Mutex
	ready    sync.Cond
	queue    []*Read
	next     int   // first op of queue that has chunks to ask for
	inFlight int64 // bytes
	backlog  int64 // bytes queued or in flight
	ahead    int64 // those of backlog that no load has asked for
	budget   int64
	speed    speed
	scratch  scratch

	progress  time.Time // last time that the disk delivered
	closed    bool
	calls     int // Read calls under way
	idle      sync.Cond
	verifying *queue.Queue[*Read]
	readers   sync.WaitGroup
	verifiers sync.WaitGroup
	batches   []*batch // for use again
	idleOps   []*Read  // also for use again
}

// New returns a reader that reads nothing before [Reader.Start].
func New(o Options) *Reader {
	r := &Reader{o: o, budget: o.Budget, verifying: queue.New[*Read]()}
	r.ready.L, r.idle.L = &r.mu, &r.mu
	return r
}

// SetBudget replaces the budget. It is for a reader that was not started.
func (r *Reader) SetBudget(bytes int64) { r.budget = bytes }

// Start starts the goroutines of the reader, which end with Close.
func (r *Reader) Start() {
	for range verifierCount() {
		r.verifiers.Go(r.verify)
	}
	for range r.readerCount() {
		r.readers.Go(r.readAll)
	}
}

// readerCount is enough to keep the budget in flight while some readers verify.
func (r *Reader) readerCount() int {
	const least, most = 8, 64
	return min(max(int(2*r.budget/int64(r.o.ChunkBytes)), least), most)
}

// verifierCount leaves processors to the readers: a checksum takes a fifth of a
// millisecond in which they could not ask for more. One verifier keeps up with several
// times the bandwidth of a disk.
func verifierCount() int {
	const most = 16
	return min(max(1, runtime.GOMAXPROCS(0)/2), most)
}

// verify verifies what the readers completed.
func (r *Reader) verify() {
	for {
		op, ok := r.verifying.Pop()
		if !ok {
			return
		}
		r.o.Records.Verify(op)
		r.finish(op)
	}
}

// Read reads and verifies records, as by [store.Reader]; probe reads whatever the records are of.
func (r *Reader) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp), probe bool) {
	if len(ops) == 0 {
		return
	}
	b, err := r.begin(ops, done, r.o.Clock())
	if err != nil {
		for _, op := range ops {
			op.Err = err
			done(op)
		}
		return
	}
	for _, op := range b.ops {
		op.Probe = probe
		if err := r.o.Records.Locate(op); err != nil {
			op.Err = err
			r.finish(op)
			continue
		}
		r.enqueue(op)
	}
	r.await(ctx, b)
	r.end(b)
}

func (r *Reader) enqueue(op *Read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, op)
	r.owe(op, int64(record.HeaderBytes+fsio.AlignUp(len(op.Payload))))
	r.wakeOne()
}

// owe counts bytes of an op that the disk owes from now on, or no longer. r.mu is held.
func (r *Reader) owe(op *Read, bytes int64) {
	r.backlog += bytes
	if op.Ahead {
		r.ahead += bytes
	}
}

// wakeOne wakes a goroutine if there is something to ask for and the budget has room. One that
// took or delivered a chunk goes on by itself, so that none is woken for nothing.
func (r *Reader) wakeOne() {
	if r.next < len(r.queue) {
		if c := nextChunk(r.queue[r.next], r.o.ChunkBytes); r.fits(&c) {
			r.ready.Signal()
		}
	}
}

func (r *Reader) fits(c *chunk) bool {
	return (r.inFlight == 0 || r.inFlight+c.bytes() <= r.budget) && r.room(c.op)
}

// chunk is one request to the disk: the bytes of an op's padded payload from one offset
// up to another, and the header if it is the first.
type chunk struct {
	op       *Read
	from, to int
}

func (c *chunk) bytes() int64 {
	n := int64(c.to - c.from)
	if c.from == 0 {
		n += record.HeaderBytes
	}
	return n
}

// take waits for the next chunk that the budget has room for.
func (r *Reader) take() (c chunk, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.next < len(r.queue) {
			if c = nextChunk(r.queue[r.next], r.o.ChunkBytes); r.fits(&c) {
				break
			}
		} else if r.closed && r.calls == 0 {
			return c, false
		}
		r.ready.Wait()
	}
	rd := c.op
	if rd.phase == queued || r.inFlight == 0 {
		t := r.o.Clock()
		if rd.phase == queued {
			rd.phase, rd.issuedAt = issued, t
		}
		if r.inFlight == 0 {
			r.speed.begin(t)
		}
	}
	r.borrow(rd)
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
func nextChunk(op *Read, chunkBytes int) chunk {
	from, end := op.asked, fsio.AlignUp(len(op.Payload))
	to := from + chunkBytes
	if end-to < chunkBytes/2 {
		to = end // no small rest
	}
	return chunk{op: op, from: from, to: min(to, end)}
}

// pop removes the first op of the queue, moving the rest up now and then.
func (r *Reader) pop() {
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

// readAll asks the disk for chunks until the reader closes. It leaves verification to others,
// so that the next request is made at once.
func (r *Reader) readAll() {
	for {
		c, ok := r.take()
		if !ok {
			return
		}
		r.readChunk(c)
	}
}

func (r *Reader) readChunk(c chunk) {
	op := c.op
	padded := op.target()
	var err error
	r.o.Gate.reads(1)
	if c.from == 0 {
		op.Header = r.o.Headers.Get()
		err = op.File.ReadVec(op.Header.Bytes, padded[:c.to], op.Offset)
	} else {
		err = op.File.ReadVec(padded[c.from:c.to], nil, op.Offset+record.HeaderBytes+int64(c.from))
	}
	r.o.Gate.reads(-1)
	switch r.delivered(c, err, r.o.Clock()) {
	case verifying:
		r.verifying.Push(op)
	case abandoned:
		r.settle(op)
	}
}

// delivered accounts for a chunk. It returns verifying if the op has all its bytes (or
// an error) and abandoned if the last request of an abandoned op ended.
func (r *Reader) delivered(c chunk, err error, now time.Time) phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight -= c.bytes()
	rd := c.op
	r.owe(rd, -c.bytes())
	r.progress = now
	if err == nil {
		r.speed.delivered(now, c.bytes())
	} else {
		r.speed.delivered(now, 0)
	}
	if err != nil && rd.IOErr == nil {
		rd.IOErr = err
		r.drop(c.op) // what has not been asked for is not needed
	}
	rd.outstanding--
	complete := rd.asked == fsio.AlignUp(len(c.op.Payload)) || rd.IOErr != nil
	switch {
	case rd.outstanding > 0:
		return issued
	case rd.phase == abandoned:
		return abandoned
	case complete:
		rd.phase = verifying
		r.speed.record(now.Sub(rd.issuedAt))
		return verifying
	}
	return issued
}

// drop removes an op from the queue. r.mu is held.
func (r *Reader) drop(op *Read) {
	for i := r.next; i < len(r.queue); i++ {
		if r.queue[i] == op {
			c := chunk{op: op, from: op.asked, to: fsio.AlignUp(len(op.Payload))}
			r.owe(op, -c.bytes())
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return
		}
	}
}

// finish reports an op that the kernel is done with.
func (r *Reader) finish(op *Read) {
	r.letGo(op)
	r.report(op)
}

// letGo gives back what an op holds of the store.
func (r *Reader) letGo(op *Read) {
	if op.File != nil {
		r.o.Records.Unpin(op.Ref)
		op.File = nil
	}
	if op.Header != nil {
		r.o.Headers.Put(op.Header)
		op.Header = nil
	}
	r.giveBack(op)
}

// report calls done. The op is the caller's from then on.
func (r *Reader) report(op *Read) {
	r.o.Records.Count(op.ReadOp)
	b := op.batch
	b.done(op.ReadOp)
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.left--; b.left == 0 {
		b.ended <- struct{}{}
	}
}

// Close refuses new calls of Read and waits for those under way, which have deadlines. It returns
// when nothing is verified any more, and reports whether the kernel still owes answers: then
// goroutines of the reader wait for them.
func (r *Reader) Close() (hung bool) {
	r.mu.Lock()
	r.closed = true
	for r.calls > 0 {
		r.idle.Wait()
	}
	r.ready.Broadcast()
	r.mu.Unlock()
	r.verifying.Close()
	r.verifiers.Wait()
	if _, inFlight := r.Depth(); inFlight > 0 {
		return true
	}
	r.readers.Wait()
	return false
}

// Depth returns the queue's length and the bytes asked of the disk.
func (r *Reader) Depth() (queued, inFlight int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.queue) - r.next), r.inFlight
}
