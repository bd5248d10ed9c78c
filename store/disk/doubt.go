package disk

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// doubts are the records whose last read failed although they are in the index: the disk
// gave an error or no answer, or the record is of another prefix. A save of such a record
// replaces it, and one that the disk does not give for the second time, while it gave
// others, is dropped: else it would be offered, waited for and computed for ever.
type doubts struct {
	held atomic.Int64 // entries of last
	read atomic.Uint64
	mu   sync.Mutex
	last map[index.Ref]doubt
}

type doubt struct {
	seq    uint64
	read   uint64 // as doubts has it at the time
	medium bool   // the disk reported an error of the medium
	failed bool   // the disk did not give the record
}

// maxDoubts bounds what is remembered; beyond it any entry goes.
const maxDoubts = 4096

// good notes that a record was read and verified.
func (d *doubts) good(ref index.Ref) {
	d.read.Add(1)
	if d.held.Load() > 0 {
		d.take(ref)
	}
}

// take removes and returns what is held against a slot's record.
func (d *doubts) take(ref index.Ref) doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.last[ref]
	delete(d.last, ref)
	d.held.Store(int64(len(d.last)))
	return e
}

// bad notes that the read of a record failed. It reports whether the record should go:
// it failed before, and others were read since.
func (d *doubts) bad(ref index.Ref, seq uint64, err error) (drop bool) {
	e := doubt{seq: seq, read: d.read.Load(), failed: errors.Is(err, store.ErrIO) || errors.Is(err, store.ErrTimeout), medium: fsio.OfMedium(err)}
	d.mu.Lock()
	defer d.mu.Unlock()
	old, again := d.last[ref]
	again = again && old.seq == seq && old.failed && e.failed
	if again && e.read > old.read {
		delete(d.last, ref)
		d.held.Store(int64(len(d.last)))
		return true
	}
	if again {
		e.read = old.read
	}
	if d.last == nil {
		d.last = make(map[index.Ref]doubt)
	}
	for other := range d.last {
		if len(d.last) < maxDoubts {
			break
		}
		delete(d.last, other)
	}
	d.last[ref] = e
	d.held.Store(int64(len(d.last)))
	return false
}

// readFailed notes that a record could not be read or is of another prefix. It reports
// whether the record is to be dropped.
func (s *Store) readFailed(ref index.Ref, seq uint64, err error) (drop bool) {
	if !s.doubts.bad(ref, seq, err) {
		return false
	}
	s.count.unreadable.Add(1)
	s.opts.Logger.Warn("store: dropped a record that could not be read twice", "err", err,
		"remedy", "look for I/O errors in the kernel's log; if it goes on, replace the disk")
	return true
}

// doubted reports whether the last read of a record failed, so that a save is to replace it.
func (s *Store) doubted(found index.Found) bool {
	d := &s.doubts
	if d.held.Load() == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.last[found.Ref]
	return ok && e.seq == found.Seq
}

// replace drops the record that a save replaces, now that the new payload is written: a save that
// fails costs nothing. It is in one batch with the new record.
func (c *committing) replace(op *write) {
	ref, seq := op.oldRef, op.oldSeq
	if seq == 0 {
		return
	}
	select {
	case <-c.s.journal.Failed():
		return // the save fails
	default:
	}
	e := c.s.doubts.take(ref)
	c.drop(ref, seq, e.seq == seq && e.medium)
}
