package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/record"
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
	// The store grows again when there is this part of MinFreeBytes, at most marginBytes,
	// more than MinFreeBytes: it must not give back and grow in turns.
	marginPart, marginBytes = 16, 1 << 30
)

// reserved is what the store sets aside beside the segments when these have that many
// slots: the journal, the snapshot and small files. p.mu is held.
func (p *Space) reserved(slots int64) int64 {
	j := max(journal.ReservedBytes(p.limits.MemTable, slots), p.journalB)
	return j + slots*snapshotSlotBytes + fixedFilesBytes + p.smallBytes()
}

// smallBytes is what counts for manifests and whatever else lies in the directory. p.mu is
// held.
func (p *Space) smallBytes() int64 { return max(manifestBytes, p.smallB) }

// allSlots are those that may need room in journal and snapshot: those of segments that the disk
// does not give yet, too. p.mu is held.
func (p *Space) allSlots() int64 { return p.slots + p.awaitedSlots }

// outstanding is what of that is not occupied yet. It will be, whatever the file system must
// keep free. p.mu is held.
func (p *Space) outstanding() int64 {
	return max(0, p.reserved(p.allSlots())-p.journalB-fixedFilesBytes-p.smallB)
}

// capRoom is what the cap leaves, freeRoom what the file system leaves: enough to stay
// clear of the space that must stay free, with a margin if the caller can do without. p.mu
// is held.
func (p *Space) capRoom() int64 { return p.limits.MaxBytes - p.bytes - p.reserved(p.allSlots()) }

func (p *Space) freeRoom(margin bool) int64 {
	if p.limits.minFree == 0 {
		return 1<<63 - 1
	}
	room := p.limits.room.FreeBytes - p.outstanding() - p.limits.minFree
	if margin {
		room -= p.margin()
	}
	return room
}

func (p *Space) margin() int64 { return min(p.limits.minFree/marginPart, marginBytes) }

// over is by how many bytes the store is above its cap.
func (p *Space) over() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return -p.capRoom()
}

// excess is how much must be given up, beyond what is being given up already. With the
// file system too full that is a little more than needed. p.mu is held.
func (p *Space) excess() int64 {
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
func (p *Space) frees(g *Segment) int64 {
	return g.physical + p.reserved(p.allSlots()) - p.reserved(p.allSlots()-int64(g.Slots))
}

// limit is how large the store can become as things are, and what keeps it from growing by
// a segment now. p.mu is held.
func (p *Space) limit() (bytes int64, by LimitBy) {
	free := p.freeRoom(false)
	bytes = p.limits.MaxBytes
	if p.limits.minFree > 0 {
		bytes = max(0, min(bytes, p.bytes+p.reserved(p.allSlots())+free))
	}
	least := p.limits.nominal / minShrunkSegments
	switch {
	case min(p.capRoom(), p.freeRoom(true)) >= least:
	case p.freeRoom(true) < p.capRoom():
		by = LimitedByFree
	default:
		by = LimitedByCap
	}
	return bytes, by
}

// errNoRoom says that a segment would take space that must stay free, errRoomUnknown that the
// file system does not tell what is free, whatever the reason.
var (
	errNoRoom      = errors.New("the file system must keep that space free (min_free)")
	errRoomUnknown = errors.New("it is not known how much space is free")
)

// keepsFree reports whether space must stay free, or may have to: how much is not known before
// the file system has told its size.
func (p *Space) keepsFree() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits.minFree > 0 || p.limits.minFreeRule.Bytes >= 0 && p.limits.room.TotalBytes == 0
}

// askRoom asks the file system how much is free, if that matters.
func (p *Space) askRoom() error {
	if !p.keepsFree() {
		return nil
	}
	room, err := p.o.FS.Room(p.o.Dir)
	if err != nil {
		return fmt.Errorf("ask for free space: %w: %w", errRoomUnknown, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits.setRoom(room)
	return nil
}

// checkRoom asks the file system, just before that many bytes are allocated, whether they
// leave the space that must stay free.
func (p *Space) checkRoom(bytes int64, margin bool) error {
	if err := p.askRoom(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freeRoom(margin) < bytes {
		return fmt.Errorf("%d bytes with %d free: %w", bytes, p.limits.room.FreeBytes, errNoRoom)
	}
	return nil
}

// Claim takes room for a file that is there for a while; the caller gives it back with
// unclaim when the file is gone.
func (p *Space) Claim(bytes int64) bool {
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

// Leave notes that the file for which claim took room could not be removed: it is removed later.
func (p *Space) Leave(path string, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aside = append(p.aside, asideFile{path: path, bytes: bytes, due: true})
}

// Unclaim gives back what claim took.
func (p *Space) Unclaim(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= bytes
}

// SnapshotFits reports whether a snapshot of that many bytes may be written at the end: it
// is counted with what the journal really occupies, not with what is set aside for it.
func (p *Space) SnapshotFits(bytes int64) bool {
	if p.askRoom() != nil || !p.leavesFree(bytes) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limits.minFree > 0 && p.limits.room.FreeBytes-p.limits.minFree < bytes {
		return false
	}
	return p.bytes+p.journalB+fixedFilesBytes+p.smallBytes()+bytes <= p.limits.MaxBytes
}

// leavesFree reports whether a file in the store's directory leaves what must stay free there. Where
// the segments have a file system of their own, min_free speaks of that: of the directory's,
// which may be far smaller, no more than the default is kept free.
func (p *Space) leavesFree(bytes int64) bool {
	if !p.keepsFree() {
		return true
	}
	room, err := p.o.FS.Room(filepath.Dir(p.o.Dir))
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	least := p.limits.minFree
	if room.Device != p.limits.room.Device {
		least = min(least, (MinFree{}).of(room.TotalBytes))
	}
	return room.FreeBytes-bytes >= least
}

// NeverFits reports whether a slot is larger than the cap less what the store needs for
// itself.
func (p *Space) NeverFits(slotBytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fixed := journal.ReservedBytes(p.limits.MemTable, 1) + snapshotSlotBytes + fixedFilesBytes + p.smallBytes()
	need := slotBytes + record.HeaderBytes + extentBytes + segmentSlackBytes
	return need+max(fixed, p.reserved(0)) > p.limits.MaxBytes
}

// starved reports whether the file system leaves no room for a slot, whatever the store
// gives up.
func (p *Space) starved(slotBytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limits.minFree == 0 {
		return false
	}
	return p.bytes+p.freeRoom(false) < slotBytes+record.HeaderBytes+extentBytes+segmentSlackBytes
}

// makingState is what is known of attempts to make segments that failed.
type makingState struct {
	failures int
	full     bool // there was no space
	wait     bool // not to be tried before the next measurement
	// gaveUp is set when a segment that was given up for another size is gone. If none can be made
	// all the same, no other is: each size would take the other's, one by one.
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
	// And what could not be asked was not answered.
	passing := errors.Is(err, journal.ErrFailed) || errors.Is(err, errRoomUnknown)
	m.full = noSpace && !passing || m.failures >= manyFailures
}

// mayMake reports whether a segment may be made now. p.mu is held.
func (p *Space) mayMake() bool { return !p.making.wait && p.unmeasured == 0 }

// mayGiveUp reports whether giving up a segment for another size is likely to bring room. p.mu is
// held.
func (p *Space) mayGiveUp() bool {
	stuck := slices.ContainsFunc(p.aside, func(f asideFile) bool { return f.stuck })
	return !stuck && (p.making.failures == 0 || !p.making.gaveUp)
}

// retryMaking has the next writer that finds no slot try to make a segment again: what
// failed may have passed.
func (p *Space) retryMaking() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making.wait = false
}
