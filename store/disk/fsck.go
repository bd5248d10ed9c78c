package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// FsckOptions says what [Fsck] checks beyond all structures.
type FsckOptions struct {
	// Payload also reads and verifies every payload.
	Payload bool
	// Progress, if not nil, is called from time to time with the records checked, and
	// before that with the slots read where the index is rebuilt.
	Progress func(done, total int64)
	// Store is how the directory is opened; Dir and MaxBytes in it are ignored.
	Store Options
}

// FsckReport says what [Fsck] found and did.
type FsckReport struct {
	Dir string `json:"dir"`
	// Recovered says where the index came from; anything but a snapshot means that the
	// store had not been stopped cleanly.
	Recovered  recovery.Recovery `json:"recovered"`
	Namespaces int               `json:"namespaces"`
	Segments   int               `json:"segments"`
	Records    int64             `json:"records"`
	// Hidden are records that a store with these keys does not use. Of those whose key is not there the checksum
	// of what is stored was verified, and not that it is what was sealed.
	recovery.Hidden
	// CheckedBytes were read from segments.
	CheckedBytes int64 `json:"checked_bytes"`
	// SetAsideBytes are of files whose names end in .bad: see [Stats].
	SetAsideBytes int64 `json:"set_aside_bytes"`
	// Dropped are the records that are no more, Repaired what was put right.
	Dropped  []Damage `json:"dropped"`
	Repaired []string `json:"repaired"`
	// Failed is what could be neither read nor repaired.
	Failed []string `json:"failed"`
}

// Clean reports whether nothing was wrong.
func (r *FsckReport) Clean() bool {
	return len(r.Dropped) == 0 && len(r.Repaired) == 0 && len(r.Failed) == 0
}

// Fsck checks the store in dir, which must not be open: format, journal, segment headers,
// manifests, accounting and the header of every record. It repairs what can be repaired
// and drops records that are damaged. No record that is intact is dropped, whatever cap
// the store is used with.
func Fsck(ctx context.Context, dir string, o FsckOptions) (report FsckReport, err error) {
	report.Dir = dir
	f := &fsck{o: o, report: &report}
	damaged, err := f.run(ctx, dir)
	if err == nil && damaged != nil {
		// The journal cannot be read though the index could: a new one is made.
		report.Repaired = append(report.Repaired, fmt.Sprintf("journal was damaged (%v): made again from record headers", damaged))
		if err = f.s.state.DiscardJournal(); err == nil {
			damaged, err = f.run(ctx, dir)
		}
		if f.lock != nil {
			err = errors.Join(err, f.lock.Close())
		}
		if damaged != nil {
			f.failed("journal cannot be read: %v", damaged)
		}
	}
	return report, err
}

type fsck struct {
	s      *Store
	o      FsckOptions
	report *FsckReport
	// lock is the directory's, kept between two openings.
	lock io.Closer
	mu   sync.Mutex // guards report while records are checked
}

// run opens the store and checks it. damaged is what is wrong with a journal that the
// opening had no need to read.
func (f *fsck) run(ctx context.Context, dir string) (damaged, err error) {
	so := f.o.Store
	so.Dir, so.MaxBytes, so.checkOnly, so.held = dir, math.MaxInt64/4, true, f.lock
	f.lock = nil // the store's, from now on
	s, err := Open(ctx, so)
	if err != nil {
		return nil, err
	}
	defer func() {
		if damaged != nil {
			// Nobody else may have the directory before its journal is made again.
			f.lock, s.state.Lock = s.state.Lock, io.NopCloser(nil)
		}
		if closed := s.Close(); damaged == nil { // else the journal cannot be closed either
			err = errors.Join(err, closed)
		}
	}()
	f.s = s
	if err := s.rebuild.Wait(ctx, f.o.Progress); err != nil {
		return nil, err
	}
	if damaged, err = f.checkJournal(ctx); damaged != nil || err != nil {
		return damaged, err
	}
	st, report := s.Stats(), f.report
	report.Recovered, report.Segments, report.Namespaces = st.Recovered, st.Segments, st.Namespaces
	report.SetAsideBytes, report.Hidden = st.SetAsideBytes, st.Hidden
	report.Repaired = append(report.Repaired, s.report.Damage()...)
	f.checkManifests()
	if err := f.checkRecords(ctx); err != nil {
		return nil, err
	}
	if err := s.space.CheckAccounting(); err != nil {
		f.failed("%v", err)
	}
	report.Records = int64(s.table.Len())
	return nil, s.Sync(ctx)
}

func (f *fsck) failed(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report.Failed = append(f.report.Failed, fmt.Sprintf(format, args...))
}

func (f *fsck) checkManifests() {
	for _, n := range f.s.Namespaces() {
		if n.Manifest == nil && !n.Forgotten {
			f.failed("manifest of namespace %v is lost; its records stay, and it is written again when an engine registers it", n.Digest)
		}
	}
}

// checkJournal compares the index, which may come from a snapshot, with the journal.
func (f *fsck) checkJournal(ctx context.Context) (damaged, err error) {
	n, differ := 0, 0
	damaged = f.s.journal.Records(0, math.MaxUint32, func(r *journal.Record) error {
		if f.s.opener.AcceptKey(r.Algorithm, r.KeyID) != nil {
			return nil
		}
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		found, ok := f.s.table.Get(index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key}, false)
		if !ok || found.Seq != r.Seq || found.Ref != f.s.space.RefOf(r.Location) {
			differ++
		}
		return nil
	}, func(error) { differ++ })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if damaged == nil && (differ > 0 || n != f.s.table.Len()) {
		damaged = fmt.Errorf("index has %d records, journal %d, and %d of these differ", f.s.table.Len(), n, differ)
	}
	return damaged, nil
}

// fsckRun is how many slots one of them takes at a time.
const fsckRun = 256

// fsckReaders is how many records are checked at one time.
const fsckReaders = 16

// checkRecords reads the headers of all records, and their payloads if that is asked for.
func (f *fsck) checkRecords(ctx context.Context) error {
	segments := f.s.space.AllSegments()
	total := int64(f.s.table.Len())
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range fsckReaders {
		wg.Go(func() {
			c := newChecker(f.s, f.o.Payload)
			for ctx.Err() == nil {
				run := next.Add(1) - 1
				g, first, slots := segment.Run(segments, fsckRun, run)
				if g == nil {
					return
				}
				f.checkRun(ctx, c, g, first, slots, &done, total)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if f.o.Progress != nil {
		f.o.Progress(total, total)
	}
	return nil
}

func (f *fsck) checkRun(ctx context.Context, c *checker, g *segment.Segment, first, slots uint32, done *atomic.Int64, total int64) {
	for slot := first; slot < first+slots && ctx.Err() == nil; slot++ {
		bytes, damage, err := c.check(g, g.Base+index.Ref(slot))
		if err != nil {
			f.failed("%v", err)
		}
		if bytes == 0 {
			continue
		}
		n := done.Add(1)
		f.mu.Lock()
		if damage != nil {
			f.report.Dropped = append(f.report.Dropped, *damage)
		}
		f.report.CheckedBytes += bytes
		if f.o.Progress != nil && n%fsckRun == 0 {
			f.o.Progress(n, total)
		}
		f.mu.Unlock()
	}
}
