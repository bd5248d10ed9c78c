package readio

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Doubts are the records whose last read failed although they are in the index: the disk
// gave an error or no answer, or the record is of another prefix. A save of such a record
// replaces it, and one that the disk does not give for the second time, while it gave
// others, is dropped: else it would be offered, waited for and computed again and again.
type Doubts struct {
	held atomic.Int64  // entries of last
	read atomic.Uint64 // records read and verified
	mu   sync.Mutex
	last map[index.Ref]doubt
}

type doubt struct {
	seq    uint64
	read   uint64 // as Doubts has it at the time
	medium bool   // the disk reported an error of the medium
	failed bool   // the disk did not give the record
}

// maxDoubts bounds what is remembered; beyond it any entry goes.
const maxDoubts = 4096

// Good notes that a record was read and verified.
func (d *Doubts) Good(ref index.Ref) {
	d.read.Add(1)
	if d.held.Load() > 0 {
		d.Take(ref, 0)
	}
}

// Read notes that some record was read and verified.
func (d *Doubts) Read() { d.read.Add(1) }

// Take removes what is held against a slot's record. It reports whether the disk gave an error of
// the medium for the record with that sequence number.
func (d *Doubts) Take(ref index.Ref, seq uint64) (medium bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.last[ref]
	delete(d.last, ref)
	d.held.Store(int64(len(d.last)))
	return e.seq == seq && e.medium
}

// Bad notes that the read of a record failed. It reports whether the record should go:
// it failed before, and others were read since.
func (d *Doubts) Bad(ref index.Ref, seq uint64, err error) (drop bool) {
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

// Holds reports whether the last read of a record failed, so that a save is to replace it.
func (d *Doubts) Holds(ref index.Ref, seq uint64) bool {
	if d.held.Load() == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.last[ref]
	return ok && e.seq == seq
}
