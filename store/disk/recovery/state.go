// Package recovery opens a store's directory: it finds out what the files hold, puts right what is
// damaged, fills the index, and reads record headers, while the store is in use, where the journal
// does not vouch for them. It also makes a new journal when one has failed.
package recovery

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/disk/stamp"
	"github.com/kvconn/kvconn/store/record"
)

// Errors of opening a store, beside those of package store.
var (
	// ErrInUse says that another process has the directory open.
	ErrInUse = errors.New("store: directory is in use by another process")
	// ErrSegmentsMissing says that the store held records and none of its segment files is
	// there: most likely their file system is not mounted. See ForgetSegments.
	ErrSegmentsMissing = errors.New("store: segment files are missing")
	// ErrNewerFormat says that a newer version of the program made the directory.
	ErrNewerFormat = errors.New("store: directory has a newer format")
)

// Options say how a state is opened.
type Options struct {
	Dir string
	// MaxBytes, MaxPercent, MinFree and SegmentBytes are what the space's limits follow from.
	MaxBytes     int64
	MaxPercent   float64
	MinFree      segment.MinFree
	SegmentBytes int64
	// JournalCacheBytes is the size of the journal's block cache.
	JournalCacheBytes int64
	// ForgetSegments opens a store whose segments are all gone, as an empty one.
	ForgetSegments bool
	// KeepHidden leaves headers of records that the ring does not open to a later start, and the rebuild without an end.
	KeepHidden bool
	// CheckOnly opens the store for a check: nothing is evicted to fit a cap.
	CheckOnly bool
	// Held, if not nil, is the lock of the directory, which the caller has.
	Held io.Closer
	// Locked is called once the directory is held.
	Locked     func()
	FS         fsio.FS
	JournalFS  vfs.FS
	Report     *report.Report
	Namespaces *namespace.Registry
	// Opener says which records are used.
	Opener *record.Opener
}

// State is a store that is filled: what its directory holds, opened. It is used by one goroutine at
// a time, except for what its parts allow.
type State struct {
	opts Options

	ID        record.StoreID
	Lock      io.Closer
	Direct    bool
	Journal   *journal.Journal
	Table     *index.Table
	Space     *segment.Space
	Limits    segment.Limits
	Recovered Recovery
	// Seq is the highest sequence number of a record.
	Seq uint64
	// Opens counts the openings of the store.
	Opens uint64

	created uint64 // the opening that made the journal, 0 if it is not known
	// stamp is nil if it cannot be written; it is used by whoever makes a barrier, as is
	// barriers, the number of the last one.
	stamp       *stamp.File
	stampFailed bool
	barriers    atomic.Uint64
	// opening is what is open and not yet the state's, while it opens.
	opening *opening
	hidden  hidden
	// missing are the segment files that the disk did not give.
	missing []*segmentFile
}

// Recovery says where a store's index came from when it was opened.
type Recovery string

// The ways an index comes to be.
const (
	RecoveredNew      Recovery = "new"
	RecoveredSnapshot Recovery = "snapshot"
	RecoveredJournal  Recovery = "journal"
	RecoveredHeaders  Recovery = "headers"
)

// Open opens the directory, making it if there is none. ctx bounds the opening alone.
func Open(ctx context.Context, o Options) (*State, error) {
	s := &State{opts: o}
	err := s.open(ctx)
	if err == nil {
		return s, nil
	}
	if s.opening != nil {
		for _, f := range s.opening.files {
			f.close() // and none of the space's, which may not have all
		}
		if s.Space != nil {
			s.Space = nil
			s.Table.Close()
		}
	}
	return nil, errors.Join(err, s.Close(false))
}

func (s *State) open(ctx context.Context) error {
	if err := s.lockDir(); err != nil {
		return err
	}
	s.opts.Locked()
	formatted, err := s.readFormat()
	if err != nil {
		return err
	}
	if err := s.makeDirs(); err != nil {
		return err
	}
	s.cleanUp()
	if s.Direct, err = s.probeDirect(); err != nil {
		return err
	}
	if !s.Direct {
		s.opts.Report.Warn("file system has no direct I/O: reads and writes go through the page cache, slowly")
	}
	o := opening{nextID: 1, missing: make(map[uint32]uint32)}
	s.opening = &o
	if o.files, err = s.inspectSegments(ctx); err != nil {
		return err
	}
	s.openStamp(&o)
	if err := s.identify(&formatted, &o); err != nil {
		return err
	}
	s.replaceStamp(&o)
	if o.stamped && o.stamp.Store != s.ID {
		o.stamp, o.stamped = stamp.Stamp{}, false
	}
	if err := s.findLimits(o.files); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.recover(ctx, &o); err != nil {
		return err
	}
	s.opening = nil
	s.missing = o.awaited()
	if len(s.Space.Unread()) == 0 && len(s.missing) == 0 { // else a record that names one may not be found yet
		s.opts.Namespaces.DropManifests()
	}
	s.Space.MeasureFiles()
	s.opts.Report.WarnOfNotes()
	return nil
}

// Close closes a state that is durable, or one that could not be opened. hung says that the kernel
// still reads from segments: their files and the index stay open then.
func (s *State) Close(hung bool) (err error) {
	if s.Journal != nil {
		if err = s.Journal.Close(); errors.Is(err, journal.ErrFailed) {
			err = nil // it failed to quicken the next open, which was said: everything is durable
		}
	}
	if s.stamp != nil {
		err = errors.Join(err, s.stamp.Close())
	}
	if s.Space != nil && !hung {
		err = errors.Join(err, s.Space.CloseFiles())
		s.Table.Close()
	}
	if s.Lock != nil {
		err = errors.Join(err, s.Lock.Close())
	}
	return err
}

// Quicken makes the next open quick. Everything is durable already: what fails here costs
// time at the next start and no record. seq is the last sequence number that was given; whole says that
// the index is complete and nothing uses it any more.
func (s *State) Quicken(seq uint64, whole bool) {
	err := s.Journal.Flush()
	// A snapshot does not have hidden records, and the next start may have their key.
	if err == nil && whole && s.hidden.count() == 0 {
		// With a journal of unknown size, a snapshot might pass the cap.
		if err = s.Space.MeasureJournal(); err == nil {
			err = s.saveSnapshot(seq)
		}
	}
	if err != nil {
		s.opts.Report.Logger.Warn("store: no snapshot of the index is kept, the next start reads the journal", "err", err,
			"remedy", "free space in the file system of the store if it is full, else look for I/O errors in the kernel's log")
	}
}
