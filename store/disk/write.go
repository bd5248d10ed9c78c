package disk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/queue"
	"github.com/kvconn/kvconn/store/disk/quota"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/record"
)

// writes is the state of writes that were accepted and are not done.
type writes struct {
	mu       sync.Mutex
	idle     sync.Cond
	inFlight map[index.ID]*write
	bytes    int64
	pending  int
	closed   bool
	queue    *queue.Queue[*write]
}

func (w *writes) init() {
	w.idle.L = &w.mu
	w.inFlight = make(map[index.ID]*write)
	w.queue = queue.New[*write]()
}

// write is an op of a call of [Store.Write] on its way.
type write struct {
	*store.WriteOp
	id        index.ID
	done      func(*store.WriteOp)
	budget    int64 // bytes taken from the write budget
	ticket    quota.Ticket
	followers []*write // other ops of the same record, finished with this one
	children  []*write // written, waiting for this one to be committed before them
	// committing is set when the op's turn to be committed has come.
	committing bool
	ref        index.Ref
	depth      uint16 // blocks before it in its chain
	seq        uint64
	// algorithm and keyID say how it is sealed.
	algorithm uint8
	keyID     uint32
	// oldRef and oldSeq name the record that this one replaces, if oldSeq is not 0.
	oldRef index.Ref
	oldSeq uint64
}

// Write implements [store.Writer]. It also fails with [store.ErrIO] if the journal has failed. A write
// is done when its payload is written and its index entry committed.
func (s *Store) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (accepted int, err error) {
	for i, op := range ops {
		if err := s.accept(&write{WriteOp: op, done: done}); err != nil {
			return i, err
		}
	}
	return len(ops), nil
}

func (s *Store) accept(op *write) error {
	if err := s.checkWrite(op); err != nil {
		return err
	}
	op.Err = nil
	w := &s.writes
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return store.ErrClosed
	}
	if first := w.inFlight[op.id]; first != nil {
		if len(first.Payload) != len(op.Payload) {
			return fmt.Errorf("write of %d bytes while %d are being written: %w", len(op.Payload), len(first.Payload), store.ErrInvalid)
		}
		first.followers = append(first.followers, op)
		w.pending++
		return nil
	}
	if found, ok := s.table.Get(op.id, false); ok {
		if !s.doubts.Holds(found.Ref, found.Seq) && !s.purges.Dooms(op.id.Namespace, found.Ref, found.Seq) && !s.purges.DoomsTenant(tenants.Of(op.Scope), found.Seq) {
			w.pending++
			s.commits.Push(ended{op})
			return nil
		}
		op.oldRef, op.oldSeq = found.Ref, found.Seq
	}
	need := segment.SlotBytes(len(op.Payload))
	if w.bytes > 0 && w.bytes+need > s.opts.WriteInFlightBytes {
		s.count.Denied.Add(1)
		return fmt.Errorf("write of %d bytes with %d in flight: %w", need, w.bytes, store.ErrBusy)
	}
	ticket, now, err := s.quotas.Admit(tenants.Of(op.Scope), need, func(err error) { s.admitted(op, err) })
	switch {
	case errors.Is(err, store.ErrBusy): // of this tenant: the caller's other writes go on
		op.Err = err
		w.pending++
		s.commits.Push(ended{op})
		return nil
	case err != nil:
		return err
	}
	w.bytes += need
	w.pending++
	op.budget, op.ticket = need, ticket
	// Given in the order of acceptance: a parent's is lower than its child's.
	op.seq = s.seq.Add(1)
	op.depth = s.depthOf(op)
	w.inFlight[op.id] = op
	if now {
		w.queue.Push(op)
	}
	return nil
}

// parentID is the record of the block before op's.
func (op *write) parentID() index.ID {
	return index.ID{Namespace: op.id.Namespace, Shard: op.id.Shard, Key: op.Parent}
}

// depthOf is how many blocks come before a record in its chain, if that is known when it
// is accepted. s.writes.mu is held.
func (s *Store) depthOf(op *write) uint16 {
	if op.Parent == (connector.Key{}) {
		return 0
	}
	parent := op.parentID()
	if first := s.writes.inFlight[parent]; first != nil {
		return min(first.depth, math.MaxUint16-1) + 1
	}
	if found, ok := s.table.Get(parent, false); ok {
		return min(found.Depth, math.MaxUint16-1) + 1
	}
	return 0
}

func (s *Store) checkWrite(op *write) error {
	if err := store.CheckBuffer(op.Payload); err != nil {
		return err
	}
	id, known := s.resolve(&op.ID)
	if op.id = id; !known {
		return fmt.Errorf("namespace %v: %w", op.ID.Namespace, namespace.ErrNotOpen)
	}
	if slot := segment.SlotBytes(len(op.Payload)); s.space.NeverFits(slot) {
		s.count.Denied.Add(1)
		return fmt.Errorf("slot of %d bytes under a cap of %d: %w", slot, s.state.Limits.MaxBytes, store.ErrTooLarge)
	}
	if err := s.namespaces.CheckSize(index.Group{Namespace: op.id.Namespace, Shard: op.id.Shard}, len(op.Payload)); err != nil {
		return err
	}
	select {
	case <-s.journal.Failed():
		return fmt.Errorf("journal failed: %w", store.ErrIO)
	default:
		return nil
	}
}

// writer writes payloads until the queue is closed.
func (s *Store) writer() {
	var scratch []byte // for what is sealed
	for {
		op, ok := s.writes.queue.Pop()
		if !ok {
			return
		}
		if err := s.writeOne(op, &scratch); err != nil {
			op.Err = err
			s.commits.Push(ended{op})
		} else {
			s.commits.Push(written{op})
		}
	}
}

// writeOne puts a record into a slot. The index knows nothing of it yet.
func (s *Store) writeOne(op *write, scratch *[]byte) error {
	if !s.space.MayWrite(time.Now()) {
		return fmt.Errorf("disk refuses writes: %w", store.ErrIO)
	}
	if err := s.namespaces.Keep(op.id.Namespace); err != nil {
		return err
	}
	need := segment.SlotBytes(len(op.Payload))
	ref, err := s.reclaim.Allocate(need)
	if err != nil {
		return err
	}
	g := s.space.At(ref)
	op.ref = ref
	at := g.Location(ref)
	header := s.headers.Get()
	defer s.headers.Put(header)
	namespace, scheme := s.namespaces.Identity(op.id.Namespace)
	h := record.Header{
		Store: s.state.ID, SegmentID: at.Segment, Slot: at.Slot, Seq: op.seq,
		Namespace: namespace, Shard: op.ID.Shard, Depth: op.depth,
		Key: op.ID.Key, Parent: op.Parent, Proof: op.Proof, Scope: op.Scope, KeyScheme: scheme,
	}
	if padded := fsio.AlignUp(len(op.Payload)); s.opts.Ring != nil && cap(*scratch) <= padded {
		*scratch = store.AlignedBuffer(padded + 1) // with room for a tag
	}
	stored := s.builder.Build(&h, header.Bytes, *scratch, op.Payload, 0)
	op.algorithm, op.keyID = h.Cipher.Algorithm, h.Cipher.KeyID
	padded := stored[:fsio.AlignUp(len(stored))]
	clear(padded[len(stored):])
	g.MarkDirty()
	s.gate.BeginWrite(need)
	err = g.File.WriteVec(header.Bytes, padded, g.Offset(at.Slot))
	s.gate.EndWrite(need)
	if err != nil {
		if s.space.WriteFailed(ref, err, time.Now()) {
			s.opts.Logger.Error("store: the disk refuses writes, saves fail", "err", err,
				"remedy", "look for I/O errors in the kernel's log; if they go on, replace the disk")
		}
		s.reclaim.WakeShrinker()
		return fmt.Errorf("write record %v: %w: %w", op.ID.Key, store.ErrIO, err)
	}
	// Set again: a barrier may have taken the mark while the write was under way.
	g.MarkDirty()
	if s.space.Wrote(ref) {
		s.opts.Logger.Info("store: the disk takes writes again")
	}
	return nil
}

// written is a write whose payload is on disk: the record goes into the index. One that waits for
// its parent comes again.
type written struct{ *write }

func (w written) prepare(c *committing) {
	if !c.s.writes.awaitsParent(w.write) {
		c.replace(w.write)
		c.addWrite(w.write)
	}
}

func (w written) settle(c *committing, err error) {
	if !w.committing {
		return
	}
	if err != nil {
		w.Err = err
	}
	c.s.finishWrite(w.write)
}

// ended is a write that is only reported: it failed, or the record was there.
type ended struct{ *write }

func (w ended) prepare(*committing)           {}
func (w ended) settle(c *committing, _ error) { c.s.finishWrite(w.write) }

// awaitsParent holds a written record back while its parent is being written: the index
// and the journal get chains from their heads on, so that no crash and no eviction leaves
// a block whose predecessors are missing. committing is set for op if it is not held back.
func (w *writes) awaitsParent(op *write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	parent := w.inFlight[op.parentID()]
	if parent != nil && parent.seq < op.seq && !parent.committing {
		parent.children = append(parent.children, op)
		return true
	}
	op.committing = true
	return false
}

// finishWrite reports an op and those that waited for it. It runs in the committer.
func (s *Store) finishWrite(op *write) {
	w := &s.writes
	w.mu.Lock()
	if op.budget > 0 {
		delete(w.inFlight, op.id)
		w.bytes -= op.budget
		s.quotas.Release(op.ticket)
	}
	// Reported last, and the caller may use the op again when it is reported.
	followers := op.followers
	op.followers = nil
	for _, child := range op.children {
		s.commits.Push(written{child})
	}
	w.mu.Unlock()
	err := op.Err
	s.countWrite(op)
	op.done(op.WriteOp)
	for _, f := range followers {
		f.Err = err
		s.count.Same.Add(1)
		f.done(f.WriteOp)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending -= 1 + len(followers); w.pending == 0 {
		w.idle.Broadcast()
	}
}

func (s *Store) countWrite(op *write) {
	switch {
	case op.Err != nil && errors.Is(op.Err, store.ErrBusy):
		s.count.Denied.Add(1)
	case op.Err != nil:
		s.count.WriteErrors.Add(1)
	case op.budget == 0:
		s.count.Same.Add(1)
	default:
		s.count.Writes.Add(1)
		s.count.WriteBytes.Add(uint64(len(op.Payload)))
	}
}

// close refuses new writes and waits for those accepted.
func (w *writes) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for w.pending > 0 {
		w.idle.Wait()
	}
	w.queue.Close()
}

func (w *writes) inFlightBytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// Sync is a barrier: when it returns nil, everything whose done was called before the
// call of Sync survives a crash of the process and loss of power.
func (s *Store) Sync(ctx context.Context) error { return s.barrier.Wait(ctx) }

// replace drops the record that a save replaces, now that the new payload is written: a save that
// fails costs nothing. It is in one batch with the new record.
func (c *committing) replace(op *write) {
	ref, seq := op.oldRef, op.oldSeq
	if seq == 0 {
		return
	}
	if c.journalFailed() {
		return // the save fails
	}
	c.drop(ref, seq, c.s.doubts.Take(ref, seq))
}
