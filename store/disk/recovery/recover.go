package recovery

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/disk/snapshot"
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
func (s *State) recover(ctx context.Context, o *opening) error {
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
	if err := s.opts.FS.Remove(s.snapshot().Path); err != nil && !fsio.IsNotExist(err) {
		// It names an earlier opening, so that no one will believe it.
		s.setAside(s.snapshot().Path)
	}
	_ = s.Space.MeasureJournal() // what is set aside for it counts until it can be
	return nil
}

// recoverWith fills the index and has the journal note the opening. A journal that is damaged
// may say so at any step: tables are read and merged beside it.
func (s *State) recoverWith(ctx context.Context, o *opening) error {
	if err := s.opts.Namespaces.Load(s.Journal); err != nil {
		return err
	}
	state, err := s.readJournalState()
	if err != nil {
		return err
	}
	noted, err := s.Journal.Segments()
	if err != nil {
		return err
	}
	o.state = state
	o.lost = state.opens == 0
	if o.doubt == "" {
		o.doubt = o.suspicion(len(noted))
	}
	s.created = state.created
	s.Opens = max(state.opens, o.stamp.Opens)
	s.barriers.Store(max(state.barrier, o.stamp.Barrier))
	if err := s.settleSegments(o, noted); err != nil {
		return err
	}
	if err := s.fillIndex(ctx, o); err != nil {
		return err
	}
	s.Space.ListFreeSlots()
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
func (s *State) settleSegments(o *opening, noted []journal.Segment) error {
	known := make(map[uint32]format.Segment)
	for _, e := range noted {
		known[e.ID] = format.Segment{Store: s.ID, ID: e.ID, Slots: e.Slots, SlotBytes: e.SlotBytes}
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
func (s *State) forgetSegments(o *opening, gone map[uint32]format.Segment, failed error) error {
	if len(o.usable) == 0 && !s.opts.ForgetSegments {
		held, err := s.anyRecordNoted(o)
		if err != nil {
			return err
		}
		if held || slices.ContainsFunc(o.files, (*segmentFile).untold) {
			err = fmt.Errorf("%w: the store held records and none of its segment files can be opened; mount the file system of %s/%s, or, if they are gone for good, start kvconnd serve once with --forget-lost-segments",
				ErrSegmentsMissing, s.opts.Dir, SegmentDir)
			return errors.Join(err, failed)
		}
	}
	var ids []uint32
	for id := range gone {
		if err := s.Journal.DeleteSegment(id); err != nil {
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
			if err := s.Journal.DeleteSegment(f.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// anyRecordNoted reports whether journal or stamp tell of records.
func (s *State) anyRecordNoted(o *opening) (bool, error) {
	if o.lost {
		return o.stamp.Records > 0, nil
	}
	found := errors.New("found")
	err := s.Journal.Records(0, 1<<32-1, func(*journal.Record) error { return found }, func(error) {})
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

func (s *State) noteGone(ids []uint32) {
	const most = 4
	slices.Sort(ids)
	names := make([]string, 0, most)
	for _, id := range ids[:min(most, len(ids))] {
		names = append(names, fmt.Sprint(id))
	}
	switch list := strings.Join(names, ", "); {
	case len(ids) == 0:
	case len(ids) == 1:
		s.opts.Report.Note("segment %s is gone with its records", list)
	case len(ids) <= most:
		s.opts.Report.Note("segments %s are gone with their records", list)
	default:
		s.opts.Report.Note("segments %s and %d others are gone with their records", list, len(ids)-most)
	}
}

// fillIndex opens the segments and fills the index with what the journal knows.
func (s *State) fillIndex(ctx context.Context, o *opening) error {
	unread := 0
	for _, f := range o.usable {
		if f.unread {
			unread++
		}
	}
	s.planRebuild(o, unread)
	if unread == 0 && !o.lost {
		table := index.New()
		space, err := s.loadSnapshot(o, table)
		if err == nil {
			s.use(space, table)
			s.Recovered = RecoveredSnapshot
			return nil
		}
		table.Close()
		switch {
		case fsio.IsNotExist(err):
		case errors.Is(err, snapshot.ErrOtherKeys): // as it must be
			s.opts.Report.Logger.Info("store: the key file has other keys than before, so the journal is read")
		default:
			s.opts.Report.Note("snapshot is not used (%v): the journal was read instead", err)
		}
	}
	switch {
	case o.lost && len(o.usable) == 0:
		s.Recovered = RecoveredNew
	case o.doubt != "":
		s.Recovered = RecoveredHeaders
	default:
		s.Recovered = RecoveredJournal
	}
	table := index.New()
	s.use(s.newSpace(o, table), table)
	if err := s.reserveIndex(o); err != nil {
		return err
	}
	for _, f := range o.usable {
		base, err := s.Table.AddSlots(segment.RoundRefs(f.head.Slots))
		if err != nil {
			return err
		}
		s.Space.TakeIn(segment.Open(f.found(), base))
	}
	return s.loadRecords(ctx)
}

func (s *State) snapshot() snapshot.File {
	return snapshot.File{FS: s.opts.FS, Path: filepath.Join(s.opts.Dir, SnapshotFile), Direct: s.Direct}
}

func (s *State) snapshotName() snapshot.Name {
	return snapshot.Name{Store: s.ID, Opens: s.Opens, Keys: keysName(s.opts.Opener.Ring)}
}

// saveSnapshot writes the index. The store has stopped.
func (s *State) saveSnapshot(seq uint64) error {
	var segments []snapshot.Segment
	for _, g := range s.Space.AllSegments() {
		segments = append(segments, snapshot.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes, Base: g.Base})
	}
	return s.snapshot().Save(s.snapshotName(), seq, segments, s.Table, s.Space.SnapshotFits)
}

// loadSnapshot fills an index from the snapshot of the last clean stop, and makes its space. The
// journal vouches for all usable segments.
func (s *State) loadSnapshot(o *opening, table *index.Table) (*segment.Space, error) {
	s.opts.Report.Begin("snapshot", 0)
	files := make(map[uint32]*segmentFile, len(o.usable))
	for _, f := range o.usable {
		files[f.id] = f
	}
	segments, seq, err := s.snapshot().Load(s.snapshotName(), table)
	if err == nil && len(segments) != len(files) {
		err = fmt.Errorf("snapshot has %d segments, the journal %d", len(segments), len(files))
	}
	for _, e := range segments {
		f := files[e.ID]
		if err == nil && (f == nil || f.head.Slots != e.Slots || f.head.SlotBytes != e.SlotBytes || e.Base%segment.RefAlign != 0) {
			err = fmt.Errorf("segment %d of the snapshot differs", e.ID)
		}
	}
	if err != nil {
		return nil, err
	}
	s.Seq = seq
	p := s.newSpace(o, table)
	for _, e := range segments {
		p.TakeIn(segment.Open(files[e.ID].found(), e.Base))
	}
	return p, nil
}

// use has the store use a space and its index in the place of what it had.
func (s *State) use(p *segment.Space, table *index.Table) {
	if s.Table != nil {
		s.Table.Close()
	}
	s.Space, s.Table = p, table
}

// reserveIndex makes the index as large as it was at the last barrier.
func (s *State) reserveIndex(o *opening) error {
	b, err := s.Journal.Meta(metaRecords)
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
	s.opts.Report.Begin("index", int64(min(records, slots)))
	return s.Table.Reserve(int(min(records, slots)))
}

// opensShift leaves a trillion records to each of 16 million openings.
const opensShift = index.SeqBits

// doubtOpens is how many openings are skipped where no one says how many there were: a
// sample of the headers names the last one but few.
const doubtOpens = 1 << 10

// planRebuild decides which opening this is.
func (s *State) planRebuild(o *opening, unread int) {
	if !o.stamped && unread > 0 {
		s.Opens = max(s.Opens, s.sampleOpens(o.usable)) + doubtOpens
	}
	if o.doubt != "" && (unread > 0 || o.lost) {
		s.opts.Report.Note("%s: records are read from the headers of %d segments", o.doubt, unread)
	}
}

// sampleOpens returns the last opening that the first and last records of segments name.
func (s *State) sampleOpens(files []*segmentFile) uint64 {
	var last uint64
	sc := newHeaderReader(s)
	for _, f := range files {
		for _, slot := range []uint32{0, f.head.Slots - 1} {
			if r, err := sc.read(f.file, &f.head, slot); err == nil {
				last = max(last, r.Seq>>opensShift)
			}
		}
	}
	return last
}
