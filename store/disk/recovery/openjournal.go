package recovery

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
func (s *State) openJournal() error {
	s.opts.Report.Begin("journal", 0)
	j, err := journal.Open(s.journalOptions())
	if err == nil {
		s.Journal = j
	}
	return err
}

func (s *State) journalOptions() journal.Options {
	return journal.Options{
		Dir: filepath.Join(s.opts.Dir, JournalDir), FS: s.opts.JournalFS, CacheBytes: s.opts.JournalCacheBytes,
		MemTableBytes: s.Limits.MemTable, Logger: s.opts.Report.Logger,
	}
}

// beginJournal begins a new journal in the place of one that is lost: everything in that can
// be found in the segments' headers.
func (s *State) beginJournal() error {
	if s.Journal != nil {
		_ = s.Journal.Close()
		s.Journal = nil
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
	s.Journal = d.Journal()
	return nil
}

// DiscardJournal removes a journal that is closed, so that the next opening makes it from headers,
// and the snapshot that belongs to it.
func (s *State) DiscardJournal() error {
	s.Journal = nil
	if err := s.beginJournal(); err != nil {
		return err
	}
	_ = s.opts.FS.Remove(s.snapshot().Path)
	return s.Journal.Close()
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

func (s *State) readJournalState() (st journalState, err error) {
	id, err := s.Journal.Meta(metaStore)
	if err != nil {
		return st, err
	}
	if id != nil && string(id) != string(s.ID[:]) {
		return st, errForeignJournal
	}
	for name, value := range map[string]*uint64{metaOpens: &st.opens, metaBarrier: &st.barrier,
		metaCreated: &st.created} {
		b, err := s.Journal.Meta(name)
		if err != nil {
			return st, err
		}
		if len(b) == 8 {
			*value = binary.LittleEndian.Uint64(b)
		}
	}
	return st, nil
}

func (s *State) putNumber(name string, n uint64) error {
	return s.Journal.PutMeta(name, binary.LittleEndian.AppendUint64(nil, n))
}

// stampJournal notes, durably, that the store was opened once more. Sequence numbers of
// different openings never meet, even where the journal lost the last ones, and a
// snapshot of an earlier opening is not taken for the state of this one.
func (s *State) stampJournal() error {
	s.Opens++
	s.Seq = max(s.Seq, s.Opens<<opensShift)
	numbers := map[string]uint64{metaOpens: s.Opens}
	if s.created == 0 {
		s.created = s.Opens
		numbers[metaCreated] = s.created
	}
	if err := s.Journal.PutMeta(metaStore, s.ID[:]); err != nil {
		return err
	}
	for name, n := range numbers {
		if err := s.putNumber(name, n); err != nil {
			return err
		}
	}
	if err := s.SyncJournal(); err != nil {
		return err
	}
	if s.stamp != nil {
		if err := s.stamp.Sync(); err != nil {
			s.warnOfStamp(err)
		}
	}
	return nil
}

// SyncJournal makes the journal durable and stamps how far it is.
func (s *State) SyncJournal() error {
	barrier := s.barriers.Add(1)
	if err := errors.Join(s.putNumber(metaRecords, uint64(s.Table.Len())), s.putNumber(metaBarrier, barrier)); err != nil {
		return err
	}
	if err := s.Journal.Barrier(); err != nil {
		return err
	}
	if s.stamp == nil {
		return nil
	}
	err := s.stamp.Write(stamp.Stamp{Store: s.ID, Opens: s.Opens, Barrier: barrier, Records: uint64(s.Table.Len())})
	if err != nil {
		s.warnOfStamp(err)
	}
	return nil
}

// warnOfStamp says once that the stamp cannot be written. An old stamp only vouches for
// less.
func (s *State) warnOfStamp(err error) {
	if s.stampFailed {
		return
	}
	s.stampFailed = true
	s.opts.Report.Logger.Warn("store: cannot write "+StampFile+": a journal that loses its end is not noticed at the next start", "err", err,
		"remedy", "look for I/O errors in the kernel's log")
}

// openStamp opens the stamp file, making it if there is none or it cannot be used. o.stamped
// is not set if there is no intact stamp of this directory.
func (s *State) openStamp(o *opening) {
	path := filepath.Join(s.opts.Dir, StampFile)
	var f *stamp.File
	err := fsio.Again(func() (err error) {
		f, o.stamp, err = stamp.Open(s.opts.FS, path, s.Direct)
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
func (s *State) replaceStamp(o *opening) {
	switch {
	case o.stampUnread == nil:
	case fsio.OfMedium(o.stampUnread):
		s.makeStamp(true)
	default:
		s.warnOfStamp(o.stampUnread)
	}
}

// makeStamp makes the stamp file; occupied says that something has its name.
func (s *State) makeStamp(occupied bool) {
	path := filepath.Join(s.opts.Dir, StampFile)
	if occupied {
		s.setAside(path)
	}
	f, err := stamp.Create(s.opts.FS, path, s.Direct)
	if err != nil {
		s.warnOfStamp(err)
		return
	}
	s.stamp = f
}
