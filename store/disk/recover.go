package disk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/stamp"
)

// opening is what recovery works with: what was found in the directory, and what is made
// of it. Segment headers are the truth, the journal a copy of them that is quick to read:
// where it cannot be believed the headers are read, once the store is open.
type opening struct {
	files   []*segmentFile
	stamp   stamp.Stamp
	stamped bool
	// stampUnread says why the disk did not give the stamp; nil if it did or there is none.
	stampUnread error

	state  journalState
	usable []*segmentFile // in the order of their numbers
	// nextID is the number of the next segment to make; missing are the slots of segments that the
	// disk does not give and the journal knows.
	nextID  uint32
	missing map[uint32]uint32
	// doubt says why the journal does not vouch for the segments that it knows, or is empty.
	doubt string
	// lost is set if there was nothing in the journal.
	lost bool
}

// recover opens the journal and fills the index: from the snapshot of a clean stop, else
// from the journal. Segments that the journal does not vouch for are left to the rebuild.
func (s *Store) recover(ctx context.Context, o *opening) error {
	err := s.openJournal()
	if err == nil {
		err = s.recoverWith(ctx, o)
	}
	if err != nil && journalIsLost(ctx, err) {
		o.doubt = fmt.Sprintf("journal was damaged (%v)", err)
		o.usable = nil
		if err := s.beginJournal(); err != nil {
			return fmt.Errorf("make room for a new journal: %w", err)
		}
		err = s.recoverWith(ctx, o)
	}
	if err != nil {
		return err
	}
	if err := s.opts.fs.Remove(s.snapshotPath()); err != nil && !fsio.IsNotExist(err) {
		// It names an earlier opening, so that no one will believe it.
		s.setAside(s.snapshotPath())
	}
	_ = s.space.measureJournal() // what is set aside for it counts until it can be
	return nil
}

// recoverWith fills the index and has the journal note the opening. A journal that is damaged
// may say so at any step: tables are read and merged beside it.
func (s *Store) recoverWith(ctx context.Context, o *opening) error {
	if err := s.namespaces.Load(s.journal); err != nil {
		return err
	}
	state, err := s.readJournalState()
	if err != nil {
		return err
	}
	noted, err := s.journal.Segments()
	if err != nil {
		return err
	}
	o.state = state
	o.lost = state.opens == 0
	if o.doubt == "" {
		o.doubt = o.suspicion(len(noted))
	}
	s.created = state.created
	s.opens = max(state.opens, o.stamp.Opens)
	s.barriers.Store(max(state.barrier, o.stamp.Barrier))
	if err := s.settleSegments(o, noted); err != nil {
		return err
	}
	if err := s.fillIndex(ctx, o); err != nil {
		return err
	}
	s.space.listFreeSlots()
	return s.stampJournal()
}

// suspicion says why the journal is not to be believed, or is empty.
func (o *opening) suspicion(segments int) string {
	empty := o.lost && len(o.files) == 0 && segments == 0
	switch {
	case empty && o.stamp.Records == 0:
		return "" // a new store
	case o.lost:
		return "journal was lost"
	case o.state.created == 0:
		return "journal has lost its beginning"
	case !o.stamped:
		return "STAMP was lost or damaged: the journal may be an old one"
	case o.state.barrier < o.stamp.Barrier || o.state.opens < o.stamp.Opens:
		return fmt.Sprintf("journal has lost its end: barrier %d of %d", o.state.barrier, o.stamp.Barrier)
	}
	return ""
}

// settleSegments decides what each segment file is and whether the journal vouches for it.
func (s *Store) settleSegments(o *opening, noted []journal.Segment) error {
	known := make(map[uint32]format.Segment)
	for _, e := range noted {
		known[e.ID] = format.Segment{Store: s.id, ID: e.ID, Slots: e.Slots, SlotBytes: e.SlotBytes}
		o.nextID = max(o.nextID, e.ID+1)
	}
	slices.SortFunc(o.files, func(a, b *segmentFile) int { return cmp.Compare(a.id, b.id) })
	var failed error
	for _, f := range o.files {
		o.nextID = max(o.nextID, f.id+1)
		if f.dismissed {
			continue // when the journal was read before
		}
		var vouched *format.Segment
		if k, ok := known[f.id]; ok {
			vouched = &k
		}
		f.unread = o.doubt != ""
		if err := s.settleHead(f, vouched); err != nil {
			failed = err
			if s.dismiss(f, err); vouched != nil {
				o.missing[f.id] = vouched.Slots
			}
			continue
		}
		o.usable = append(o.usable, f)
		delete(known, f.id)
	}
	return s.forgetSegments(o, known, failed)
}

// forgetSegments drops the segments whose files are gone from the journal, unless all of
// them are: then a file system is not mounted, and forgetting would cost the whole cache.
func (s *Store) forgetSegments(o *opening, gone map[uint32]format.Segment, failed error) error {
	if len(o.usable) == 0 && !s.opts.ForgetSegments {
		held, err := s.anyRecordNoted(o)
		if err != nil {
			return err
		}
		if held || slices.ContainsFunc(o.files, (*segmentFile).untold) {
			err = fmt.Errorf("%w: the store held records and none of its segment files can be opened; mount the file system of %s/%s, or, if they are gone for good, start kvconnd serve once with --forget-lost-segments",
				ErrSegmentsMissing, s.opts.Dir, segmentDir)
			return errors.Join(err, failed)
		}
	}
	var ids []uint32
	for id := range gone {
		if err := s.journal.DeleteSegment(id); err != nil {
			return err
		}
		if !slices.ContainsFunc(o.files, func(f *segmentFile) bool { return f.id == id }) {
			ids = append(ids, id)
		}
	}
	s.noteGone(ids)
	for _, f := range o.usable {
		if f.unread {
			// From now on the journal does not vouch for it, until its headers are read.
			if err := s.journal.DeleteSegment(f.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// anyRecordNoted reports whether journal or stamp tell of records.
func (s *Store) anyRecordNoted(o *opening) (bool, error) {
	if o.lost {
		return o.stamp.Records > 0, nil
	}
	found := errors.New("found")
	err := s.journal.Records(0, 1<<32-1, func(*journal.Record) error { return found }, func(error) {})
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

func (s *Store) noteGone(ids []uint32) {
	const most = 4
	slices.Sort(ids)
	names := make([]string, 0, most)
	for _, id := range ids[:min(most, len(ids))] {
		names = append(names, fmt.Sprint(id))
	}
	switch list := strings.Join(names, ", "); {
	case len(ids) == 0:
	case len(ids) == 1:
		s.report.Note("segment %s is gone with its records", list)
	case len(ids) <= most:
		s.report.Note("segments %s are gone with their records", list)
	default:
		s.report.Note("segments %s and %d others are gone with their records", list, len(ids)-most)
	}
}

// fillIndex opens the segments and fills the index with what the journal knows.
func (s *Store) fillIndex(ctx context.Context, o *opening) error {
	unread := 0
	for _, f := range o.usable {
		if f.unread {
			unread++
		}
	}
	s.planRebuild(o, unread)
	if unread == 0 && !o.lost {
		space, err := s.loadSnapshot(o)
		if err == nil {
			s.use(space)
			s.recovered = RecoveredSnapshot
			return nil
		}
		if !fsio.IsNotExist(err) {
			s.report.Note("snapshot is not used (%v): the journal was read instead", err)
		}
	}
	switch {
	case o.lost && len(o.usable) == 0:
		s.recovered = RecoveredNew
	case o.doubt != "":
		s.recovered = RecoveredHeaders
	default:
		s.recovered = RecoveredJournal
	}
	s.use(s.newSpace(o))
	if err := s.reserveIndex(o); err != nil {
		return err
	}
	for _, f := range o.usable {
		base, err := s.table.AddSlots(roundRefs(f.head.Slots))
		if err != nil {
			return err
		}
		s.space.takeIn(newSegment(f.found(), base))
	}
	return s.loadRecords(ctx)
}

// use has the store use a space and its index in the place of what it had.
func (s *Store) use(p *space) {
	if s.table != nil {
		s.table.Close()
	}
	s.space, s.table = p, p.table
}

// reserveIndex makes the index as large as it was at the last barrier.
func (s *Store) reserveIndex(o *opening) error {
	b, err := s.journal.Meta(metaRecords)
	if err != nil {
		return err
	}
	records := o.stamp.Records
	if len(b) == 8 {
		records = max(records, binary.LittleEndian.Uint64(b))
	}
	var slots uint64
	for _, f := range o.usable {
		slots += uint64(f.head.Slots)
	}
	s.report.Begin("index", int64(min(records, slots)))
	return s.table.Reserve(int(min(records, slots)))
}
