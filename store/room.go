package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// How much the store may occupy. Two bounds hold at any moment: the cap on what lies in
// the store's directory, and the space that the file system must keep free for others. That is
// the segments' file system, which may be a mount of its own: only they can be given back.

const (
	// snapshotSlotBytes bounds what one slot needs in a snapshot.
	snapshotSlotBytes = 64
	// fixedFilesBytes is for the files of fixed size and directories, manifestBytes what is
	// set aside for manifests and whatever else lies in the directory, until they take more:
	// so that the next one does not cost a segment.
	fixedFilesBytes = 64 << 10
	manifestBytes   = 192 << 10
	// reservedOfSlot is what is set aside for each slot beside its segment.
	reservedOfSlot = journal.RecordBytes + snapshotSlotBytes
	// defaultCapNum / defaultCapDen of what is free or the store's own is the cap of a
	// store that was given none: a file system that is nearly full is slow, and others
	// write to it.
	defaultCapNum, defaultCapDen = 4, 5
	// smallCapBytes is a default cap below which something is likely to be wrong: a disk
	// that is full, or not mounted yet.
	smallCapBytes = 1 << 30
	// The default of Options.MinFreeBytes is the larger of this part of the file system and
	// minFreeBytes, but no more than minFreeMost of it.
	minFreePart, minFreeBytes, minFreeMost = 20, 10 << 30, 4
	// The store grows again when there is this part of MinFreeBytes, at most marginBytes,
	// more than MinFreeBytes: it must not give back and grow in turns.
	marginPart, marginBytes = 16, 1 << 30
)

// segmentsOfCap is how many segments a cap is divided into at least, memTablePart of the
// cap the size of a memtable; filesOfCap bounds the number of segment files of a large cap.
const (
	segmentsOfCap = 32
	memTablePart  = 512
	filesOfCap    = 4096
)

// setSpace finds out how much the store may occupy.
func (s *Store) setSpace() {
	segments := filepath.Join(s.opts.Dir, segmentDir)
	room, err := s.opts.fs.Room(segments)
	if err != nil {
		s.note("cannot ask how much space is free: nothing is known of what others use (%v)", err)
	}
	limit, source := s.findCap(room, err == nil)
	nominal := max(s.opts.SegmentBytes, limit/filesOfCap)
	s.space = &space{
		fs: s.opts.fs, dir: segments, store: s.id, direct: s.direct,
		maxBytes: limit, capSource: source, nominal: min(nominal, limit/segmentsOfCap), room: room,
		memTable: min(max(limit/memTablePart, journal.MinMemTableBytes), journal.MaxMemTableBytes),
	}
	s.space.forgetSegments(s.table)
	s.space.nextID = 1
	if s.opts.checkOnly {
		// The cap it is used with is not known: the journal's logs must not grow.
		s.space.memTable = journal.MinMemTableBytes
		return
	}
	if err == nil {
		s.space.minFree = s.opts.minFree(room.TotalBytes)
	} // else the first measurement that works sets it
	s.opts.Logger.Info("store: cap", "max_bytes", limit, "source", source, "free_bytes", room.FreeBytes,
		"min_free_bytes", s.space.minFree, "file_system_bytes", room.TotalBytes)
}

// findCap returns the cap and where it comes from. What cannot be measured must not make
// the cap small, since that costs records: known says whether room is.
func (s *Store) findCap(room disk.Room, known bool) (limit int64, source string) {
	if s.opts.MaxBytes != 0 {
		return s.opts.MaxBytes, "configured"
	}
	own, err := s.opts.fs.PhysicalBytes(s.opts.Dir)
	if err != nil {
		s.note("cannot measure what the store occupies (%v)", err)
		sizes := int64(0)
		for _, f := range s.opening.files {
			sizes += f.size
		}
		own = max(own, sizes)
	}
	if !known {
		return max(MinMaxBytes, own/defaultCapNum*defaultCapDen), "what the store occupies and a quarter more: the file system does not say what is free"
	}
	limit = max(MinMaxBytes, (room.FreeBytes+own)/defaultCapDen*defaultCapNum)
	if limit < smallCapBytes {
		s.opts.Logger.Warn("store: little space: the cap is small", "max_bytes", limit, "free_bytes", room.FreeBytes,
			"remedy", "free space in the file system of the store, see that its disk is mounted, or set max_bytes; then restart kvconnd")
	}
	return limit, "80% of free and own space"
}

// minFree is what must stay free in a file system of total bytes.
func (o *Options) minFree(total int64) int64 {
	switch {
	case o.MinFreeBytes < 0:
		return 0
	case o.MinFreeBytes > 0:
		return o.MinFreeBytes
	case o.MinFreePercent > 0:
		return max(1, int64(float64(total)*o.MinFreePercent/100))
	}
	return defaultMinFree(total)
}

func defaultMinFree(total int64) int64 {
	return min(max(total/minFreePart, minFreeBytes), total/minFreeMost)
}

// forgetSegments makes p as it is before any segment is known.
func (p *space) forgetSegments(table *index.Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table = table
	p.classes, p.segments = make(map[int64]*class), make(map[uint32]*segment)
	p.bytes, p.slots, p.pending, p.retiring, p.aside = 0, 0, nil, nil, nil
	p.slotFaults = slotFaults{bad: make(map[index.Ref]struct{}), suspects: make(map[index.Ref]suspect)}
	p.refMu.Lock()
	defer p.refMu.Unlock()
	p.byRef = nil
}

// reserved is what the store sets aside beside the segments when these have that many
// slots: the journal, the snapshot and small files. p.mu is held.
func (p *space) reserved(slots int64) int64 {
	j := max(journal.ReservedBytes(p.memTable, slots), p.journalB)
	return j + slots*snapshotSlotBytes + fixedFilesBytes + p.smallBytes()
}

// smallBytes is what counts for manifests and whatever else lies in the directory. p.mu is
// held.
func (p *space) smallBytes() int64 { return max(manifestBytes, p.smallB) }

// capRoom is what the cap leaves, freeRoom what the file system leaves: enough to stay
// clear of the space that must stay free, with a margin if the caller can do without. p.mu
// is held.
func (p *space) capRoom() int64 { return p.maxBytes - p.bytes - p.reserved(p.slots) }

func (p *space) freeRoom(margin bool) int64 {
	if p.minFree == 0 {
		return 1<<63 - 1
	}
	room := p.room.FreeBytes - p.minFree
	if margin {
		room -= p.margin()
	}
	return room
}

func (p *space) margin() int64 { return min(p.minFree/marginPart, marginBytes) }

// over is by how many bytes the store is above its cap.
func (p *space) over() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return -p.capRoom()
}

// excess is how much must be given up, beyond what is being given up already. With the
// file system too full that is a little more than needed. p.mu is held.
func (p *space) excess() int64 {
	n := -p.capRoom()
	if p.freeRoom(false) < 0 {
		n = max(n, -p.freeRoom(true))
	}
	for _, r := range p.retiring {
		n -= p.frees(r.g)
	}
	return n
}

// frees is how much room the removal of a segment makes. p.mu is held.
func (p *space) frees(g *segment) int64 {
	return g.physical + p.reserved(p.slots) - p.reserved(p.slots-int64(g.Slots))
}

// limit is how large the store can become as things are, and what keeps it from growing by
// a segment now. p.mu is held.
func (p *space) limit() (bytes int64, by LimitBy) {
	free := p.freeRoom(false)
	bytes = p.maxBytes
	if p.minFree > 0 {
		bytes = max(0, min(bytes, p.bytes+p.reserved(p.slots)+free))
	}
	least := p.nominal / minShrunkSegments
	switch {
	case min(p.capRoom(), p.freeRoom(true)) >= least:
	case p.freeRoom(true) < p.capRoom():
		by = LimitedByFree
	default:
		by = LimitedByCap
	}
	return bytes, by
}

// errNoRoom says that a segment would take space that must stay free.
var errNoRoom = errors.New("the file system must keep that space free (min_free)")

// keepsFree reports whether space must stay free.
func (p *space) keepsFree() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.minFree > 0
}

// checkRoom asks the file system, just before that many bytes are allocated, whether they
// leave the space that must stay free.
func (p *space) checkRoom(bytes int64, margin bool) error {
	if !p.keepsFree() {
		return nil
	}
	room, err := p.fs.Room(p.dir)
	if err != nil {
		return fmt.Errorf("ask for free space: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = room
	if p.freeRoom(margin) < bytes {
		return fmt.Errorf("%d bytes with %d free: %w", bytes, room.FreeBytes, errNoRoom)
	}
	return nil
}

// claim takes room for a file that is there for a while; the caller gives it back with
// unclaim when the file is gone.
func (p *space) claim(bytes int64) bool {
	if p.checkRoom(bytes, true) != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.capRoom() < bytes {
		return false
	}
	p.bytes += bytes
	return true
}

func (p *space) unclaim(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= bytes
}

// snapshotFits reports whether a snapshot of that many bytes may be written at the end: it
// is counted with what the journal really occupies, not with what is set aside for it.
func (p *space) snapshotFits(bytes int64) bool {
	if !p.leavesFree(bytes) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes+p.journalB+fixedFilesBytes+p.smallBytes()+bytes <= p.maxBytes
}

// leavesFree reports whether a file in the store's directory leaves what must stay free there. Where
// the segments have a file system of their own, min_free speaks of that: of the directory's,
// which may be far smaller, no more than the default is kept free.
func (p *space) leavesFree(bytes int64) bool {
	if !p.keepsFree() {
		return true
	}
	room, err := p.fs.Room(filepath.Dir(p.dir))
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	least := p.minFree
	if room.Device != p.room.Device {
		least = min(least, defaultMinFree(room.TotalBytes))
	}
	return room.FreeBytes-bytes >= least
}

// neverFits reports whether a slot is larger than the cap less what the store needs for
// itself.
func (p *space) neverFits(slotBytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fixed := journal.ReservedBytes(p.memTable, 1) + snapshotSlotBytes + fixedFilesBytes + p.smallBytes()
	need := slotBytes + format.HeaderBytes + extentBytes + segmentSlackBytes
	return need+max(fixed, p.reserved(0)) > p.maxBytes
}

// starved reports whether the file system leaves no room for a slot, whatever the store
// gives up.
func (p *space) starved(slotBytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.minFree == 0 {
		return false
	}
	return p.bytes+p.freeRoom(false) < slotBytes+format.HeaderBytes+extentBytes+segmentSlackBytes
}

// makingState is what is known of attempts to make segments that failed.
type makingState struct {
	failures int
	full     bool // there was no space
	wait     bool // not to be tried before the next measurement
	// gaveUp is set when a segment was given up for another size. If none can be made all the
	// same, no other is: each size would take the other's, one by one.
	gaveUp bool
}

// manyFailures to make a segment, one a second, are taken for good: the store then goes on
// with the slots it has.
const manyFailures = 30

func (m *makingState) failed(err error) {
	m.failures++
	m.wait = true
	noSpace := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, errNoRoom)
	// A journal that failed, for want of space too, is replaced: no record has to go for it.
	m.full = noSpace && !errors.Is(err, journal.ErrFailed) || m.failures >= manyFailures
}

func (m *makingState) mayTry() bool { return !m.wait }

// mayGiveUp reports whether giving up a segment for another size is likely to bring room,
// and takes it that one is given up if so. p.mu is held.
func (p *space) mayGiveUp() bool {
	stuck := slices.ContainsFunc(p.aside, func(f asideFile) bool { return f.stuck })
	if stuck || p.making.failures > 0 && p.making.gaveUp {
		return false
	}
	p.making.gaveUp = true
	return true
}

// retryMaking has the next writer that finds no slot try to make a segment again: what
// failed may have passed.
func (p *space) retryMaking() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making.wait = false
}

// cleanUp removes what an earlier process may have left half done.
func (s *Store) cleanUp() {
	fs := s.opts.fs
	remove := func(parts ...string) { _ = fs.Remove(filepath.Join(append([]string{s.opts.Dir}, parts...)...)) }
	remove(segmentDir, calibrationScratch)
	remove(segmentDir, probeFile)
	for _, dir := range []string{"", segmentDir, namespaceDir} {
		entries, err := fs.ReadDir(filepath.Join(s.opts.Dir, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				remove(dir, e.Name())
			}
		}
	}
}
