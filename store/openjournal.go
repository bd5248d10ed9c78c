package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kvconn/kvconn/store/internal/journal"
)

// openJournal opens the journal. One that is corrupt is discarded: everything in it can be
// found in the segments' headers.
func (s *Store) openJournal() error {
	dir := filepath.Join(s.opts.Dir, journalDir)
	o := journal.Options{
		Dir: dir, FS: s.opts.journalFS, CacheBytes: s.opts.JournalCacheBytes,
		MemTableBytes: s.space.memTable, Logger: s.opts.Logger,
	}
	j, err := journal.Open(o)
	if err == nil {
		if err = s.checkJournal(j); err != nil {
			err = errors.Join(err, j.Close())
		}
	}
	if err != nil && journalIsLost(err) {
		s.warn(fmt.Errorf("journal is discarded: %w", err))
		if err := s.opts.journalFS.RemoveAll(dir); err != nil {
			return err
		}
		if j, err = journal.Open(o); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	s.journal, s.space.journal = j, j
	return nil
}

var errForeignJournal = errors.New("journal belongs to another store")

func journalIsLost(err error) bool {
	return errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errForeignJournal) || errors.Is(err, os.ErrNotExist)
}

// Names of the journal's small values.
const (
	metaStore = "store" // the store's identity
	metaOpens = "opens" // how often the store was opened
	// metaRecords is the number of records at the last barrier: a hint for the next open.
	metaRecords = "records"
)

func (s *Store) checkJournal(j *journal.Journal) error {
	id, err := j.Meta(metaStore)
	if err != nil {
		return err
	}
	if id != nil && string(id) != string(s.id[:]) {
		return errForeignJournal
	}
	return nil
}

// stampJournal notes, durably, that the store was opened once more. Sequence numbers of
// different openings never meet, even where the journal lost the last ones, and a
// snapshot of an earlier opening is not taken for the state of this one.
func (s *Store) stampJournal() error {
	s.opens++
	s.seq.Store(max(s.seq.Load(), s.opens<<opensShift))
	return errors.Join(
		s.journal.PutMeta(metaStore, s.id[:]),
		s.journal.PutMeta(metaOpens, binary.LittleEndian.AppendUint64(nil, s.opens)),
		s.journal.Barrier(),
	)
}
