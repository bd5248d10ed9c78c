package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/stamp"
)

// openJournal opens the journal, or makes the first.
func (s *Store) openJournal() error {
	s.report.Begin("journal", 0)
	j, err := journal.Open(s.journalOptions())
	if err == nil {
		s.journal = j
	}
	return err
}

func (s *Store) journalOptions() journal.Options {
	return journal.Options{
		Dir: filepath.Join(s.opts.Dir, journalDir), FS: s.opts.journalFS, CacheBytes: s.opts.JournalCacheBytes,
		MemTableBytes: s.limits.memTable, Logger: s.opts.Logger,
	}
}

// beginJournal begins a new journal in the place of one that is lost: everything in that can
// be found in the segments' headers.
func (s *Store) beginJournal() error {
	if s.journal != nil {
		_ = s.journal.Close()
		s.journal = nil
	}
	o := s.journalOptions()
	d, err := journal.Begin(o)
	if err != nil {
		// Not even its directory can be used.
		s.setAside(o.Dir)
		if err = o.FS.MkdirAll(o.Dir, 0o700); err == nil {
			d, err = journal.Begin(o)
		}
	}
	if err != nil {
		return err
	}
	if err := d.Finish(); err != nil {
		d.Abort()
		return err
	}
	s.journal = d.Journal()
	return nil
}

var errForeignJournal = errors.New("journal belongs to another store")

// scarce are errors of a process or a machine that has no more to give for now.
var scarce = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM}

// passingErrors are errors that say nothing of what is in a file: the next start may not meet
// them.
var passingErrors = []error{
	unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EROFS, unix.EACCES, unix.EPERM,
	ErrSegmentsMissing,
}

func isOneOf(err error, list []error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
}

// journalIsLost reports whether an error met while the journal was opened and read is one
// of the journal's content. A journal that cannot be written is not lost: the disk is full
// or fails, and the next start may find it intact.
func journalIsLost(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, journal.ErrCorrupt):
		return true
	case isOneOf(err, passingErrors):
		return false
	}
	return errors.Is(err, journal.ErrUnreadable) || !errors.Is(err, journal.ErrFailed)
}

// Names of the journal's small values.
const (
	metaStore = "store" // the store's identity
	metaOpens = "opens" // how often the store was opened
	// metaRecords is the number of records at the last barrier: a hint for the next open.
	metaRecords = "records"
	// metaBarrier is the number of the last barrier: see [stamp.Stamp].
	metaBarrier = "barrier"
	// metaCreated is written once, when the journal is made: a journal without it has lost
	// its beginning, as one does that is made again around the logs of a lost one.
	metaCreated = "created"
)

// journalState is what a journal says of itself.
type journalState struct{ opens, barrier, created uint64 }

func (s *Store) readJournalState() (st journalState, err error) {
	id, err := s.journal.Meta(metaStore)
	if err != nil {
		return st, err
	}
	if id != nil && string(id) != string(s.id[:]) {
		return st, errForeignJournal
	}
	for name, value := range map[string]*uint64{metaOpens: &st.opens, metaBarrier: &st.barrier,
		metaCreated: &st.created} {
		b, err := s.journal.Meta(name)
		if err != nil {
			return st, err
		}
		if len(b) == 8 {
			*value = binary.LittleEndian.Uint64(b)
		}
	}
	return st, nil
}

func (s *Store) putNumber(name string, n uint64) error {
	return s.journal.PutMeta(name, binary.LittleEndian.AppendUint64(nil, n))
}

// stampJournal notes, durably, that the store was opened once more. Sequence numbers of
// different openings never meet, even where the journal lost the last ones, and a
// snapshot of an earlier opening is not taken for the state of this one.
func (s *Store) stampJournal() error {
	s.opens++
	s.seq.Store(max(s.seq.Load(), s.opens<<opensShift))
	numbers := map[string]uint64{metaOpens: s.opens}
	if s.created == 0 {
		s.created = s.opens
		numbers[metaCreated] = s.created
	}
	if err := s.journal.PutMeta(metaStore, s.id[:]); err != nil {
		return err
	}
	for name, n := range numbers {
		if err := s.putNumber(name, n); err != nil {
			return err
		}
	}
	if err := s.syncJournal(); err != nil {
		return err
	}
	if s.stamp != nil {
		if err := s.stamp.Sync(); err != nil {
			s.warnOfStamp(err)
		}
	}
	return nil
}

// syncJournal makes the journal durable and stamps how far it is.
func (s *Store) syncJournal() error {
	barrier := s.barriers.Add(1)
	if err := errors.Join(s.putNumber(metaRecords, uint64(s.table.Len())), s.putNumber(metaBarrier, barrier)); err != nil {
		return err
	}
	if err := s.journal.Barrier(); err != nil {
		return err
	}
	if s.stamp == nil {
		return nil
	}
	err := s.stamp.Write(stamp.Stamp{Store: s.id, Opens: s.opens, Barrier: barrier, Records: uint64(s.table.Len())})
	if err != nil {
		s.warnOfStamp(err)
	}
	return nil
}

// warnOfStamp says once that the stamp cannot be written. An old stamp only vouches for
// less.
func (s *Store) warnOfStamp(err error) {
	if s.stampFailed {
		return
	}
	s.stampFailed = true
	s.opts.Logger.Warn("store: cannot write "+stampFile+": a journal that loses its end is not noticed at the next start", "err", err,
		"remedy", "look for I/O errors in the kernel's log")
}

// openStamp opens the stamp file, making it if there is none or it cannot be used. o.stamped
// is not set if there is no intact stamp of this directory.
func (s *Store) openStamp(o *opening) {
	path := filepath.Join(s.opts.Dir, stampFile)
	var f *stamp.File
	err := fsio.Again(func() (err error) {
		f, o.stamp, err = stamp.Open(s.opts.fs, path, s.direct)
		if f != nil || errors.Is(err, unix.EISDIR) {
			return nil
		}
		return err
	})
	switch {
	case f != nil:
		s.stamp, o.stamped = f, o.stamp != (stamp.Stamp{})
	case err != nil && !fsio.IsNotExist(err):
		o.stampUnread = err
	default:
		s.makeStamp(err == nil)
	}
}

// replaceStamp makes a new stamp in the place of one on a bad sector: else every start would
// doubt the journal. One that may be read at the next start stays as it is: it vouches for less
// than a new one would, which is safe.
func (s *Store) replaceStamp(o *opening) {
	switch {
	case o.stampUnread == nil:
	case fsio.OfMedium(o.stampUnread):
		s.makeStamp(true)
	default:
		s.warnOfStamp(o.stampUnread)
	}
}

// makeStamp makes the stamp file; occupied says that something has its name.
func (s *Store) makeStamp(occupied bool) {
	path := filepath.Join(s.opts.Dir, stampFile)
	if occupied {
		s.setAside(path)
	}
	f, err := stamp.Create(s.opts.fs, path, s.direct)
	if err != nil {
		s.warnOfStamp(err)
		return
	}
	s.stamp = f
}
