package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"

	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// FsckOptions says what [Fsck] checks beyond all structures.
type FsckOptions struct {
	// Payload also reads and verifies every payload.
	Payload bool
	// Progress, if not nil, is called from time to time with the records checked.
	Progress func(done, total int64)
	// Store is how the directory is opened; Dir and MaxBytes in it are ignored.
	Store Options
}

// FsckReport says what [Fsck] found and did.
type FsckReport struct {
	Dir string `json:"dir"`
	// Recovered says where the index came from; anything but a snapshot means that the
	// store had not been stopped cleanly.
	Recovered  Recovery `json:"recovered"`
	Namespaces int      `json:"namespaces"`
	Segments   int      `json:"segments"`
	Records    int64    `json:"records"`
	// CheckedBytes were read from segments.
	CheckedBytes int64 `json:"checked_bytes"`
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
	so := o.Store
	so.Dir, so.MaxBytes, so.checkOnly = dir, math.MaxInt64/4, true
	s, err := Open(ctx, so)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	f := &fsck{s: s, o: o, report: &report}
	st := s.Stats()
	report.Recovered, report.Segments, report.Namespaces = st.Recovered, st.Segments, st.Namespaces
	report.Repaired = append(report.Repaired, st.Warnings...)
	f.checkManifests()
	if err := f.checkJournal(ctx); err != nil {
		return report, err
	}
	if err := f.checkRecords(ctx); err != nil {
		return report, err
	}
	f.checkAccounting()
	report.Records = int64(s.table.Len())
	return report, s.Sync(ctx)
}

type fsck struct {
	s      *Store
	o      FsckOptions
	report *FsckReport
}

func (f *fsck) failed(format string, args ...any) {
	f.report.Failed = append(f.report.Failed, fmt.Sprintf(format, args...))
}

func (f *fsck) checkManifests() {
	for _, n := range f.s.Namespaces() {
		switch {
		case n.Forgotten:
		case n.Manifest == nil:
			f.failed("manifest of namespace %v is lost; its records stay, and it is written again when an engine registers it", n.Digest)
		case sha256.Sum256(n.Manifest) != n.Digest:
			f.failed("manifest of namespace %v does not match its digest", n.Digest)
		}
	}
}

// checkJournal compares the index, which may come from a snapshot, with the journal.
func (f *fsck) checkJournal(ctx context.Context) error {
	n, differ := 0, 0
	err := f.s.journal.Records(0, math.MaxUint32, func(r *journal.Record) error {
		if !r.Readable() {
			return nil
		}
		if n++; n%loadBatch == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		found, ok := f.s.table.Get(index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key}, false)
		if !ok || found.Seq != r.Seq || found.Ref != f.s.refOf(r.Location) {
			differ++
		}
		return nil
	}, func(error) { differ++ })
	if err != nil {
		return err
	}
	if differ > 0 || n != f.s.table.Len() {
		f.failed("index has %d records, journal %d, of which %d differ: remove %s to rebuild the index from the journal",
			f.s.table.Len(), n, differ, snapshotFile)
	}
	return nil
}

func (f *fsck) checkRecords(ctx context.Context) error {
	const progressEvery = 256
	c := newChecker(f.s, f.o.Payload)
	total, done := int64(f.s.table.Len()), int64(0)
	for _, class := range f.s.space.allClasses() {
		for _, g := range f.s.space.segmentsOf(class) {
			for ref := g.base; ref < g.base+index.Ref(g.Slots); ref++ {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				bytes, damage, err := c.check(g, ref)
				if err != nil {
					f.failed("%v", err)
				}
				if damage != nil {
					f.report.Dropped = append(f.report.Dropped, *damage)
				}
				f.report.CheckedBytes += bytes
				if bytes > 0 {
					done++
				}
				if f.o.Progress != nil && bytes > 0 && (done%progressEvery == 0 || done == total) {
					f.o.Progress(done, total)
				}
			}
		}
	}
	return nil
}

func (f *fsck) checkAccounting() {
	p := f.s.space
	p.mu.Lock()
	defer p.mu.Unlock()
	var slots, free int64
	for _, g := range p.segments {
		slots += int64(g.Slots)
	}
	for _, c := range p.classes {
		free += int64(len(c.free)) + c.pending
	}
	if n := int64(f.s.table.Len()); slots != p.slots || n+free != slots {
		f.failed("%d slots, %d accounted for; %d records and %d free", slots, p.slots, n, free)
	}
}
