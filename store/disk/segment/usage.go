package segment

import "github.com/kvconn/kvconn/store/disk/fsio"

// LimitBy says what keeps a store from growing.
type LimitBy string

// The limits of a store: its cap, and the space that must stay free for others.
const (
	LimitedByCap  LimitBy = "cap"
	LimitedByFree LimitBy = "free"
)

// Usage is the state of a space at one moment.
type Usage struct {
	// FreeSlots can be written to, pendingSlots wait for a barrier. badSlots failed to be
	// written or read and are set aside; restingSlots failed once and are tried again.
	FreeSlots, PendingSlots, BadSlots, RestingSlots int64
	// Segments are all there are, retiringSegments those of them that are being given up.
	Segments, RetiringSegments int
	// PhysicalBytes is what the store occupies: segments and the larger of what the journal
	// occupies and what is set aside for it. smallBytes are the manifests and whatever else lies
	// in the directory, setAsideBytes files that could not be used or removed.
	PhysicalBytes, SegmentBytes, JournalBytes, SmallBytes, SetAsideBytes int64
	// MaxBytes is the cap, capSource where it comes from.
	MaxBytes  int64
	CapSource string
	// Room is the file system's, minFreeBytes what the store leaves free of it.
	Room         fsio.Room
	MinFreeBytes int64
	// EffectiveMaxBytes is how large the store can become, limitedBy what keeps it from growing
	// now, or empty.
	EffectiveMaxBytes int64
	LimitedBy         LimitBy
	// Making says that a segment is being made, unmeasured for how many measurements more none
	// is, since not all files could be measured.
	Making     bool
	Unmeasured int
}

// Usage returns the state of the space.
func (p *Space) Usage() (u Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.classes {
		u.FreeSlots += int64(len(c.free))
		u.PendingSlots += c.pending
		u.Making = u.Making || c.making
	}
	u.BadSlots, u.RestingSlots = int64(len(p.bad)), p.coolingSlots()
	u.Segments, u.RetiringSegments = len(p.segments), len(p.retiring)
	u.PhysicalBytes, u.SegmentBytes, u.JournalBytes = p.bytes+p.reserved(p.allSlots()), p.bytes, p.journalB
	u.SmallBytes, u.SetAsideBytes = p.smallB, p.asideBytes()
	u.MaxBytes, u.CapSource, u.Room, u.MinFreeBytes = p.MaxBytes, p.capSource, p.room, p.minFree
	u.EffectiveMaxBytes, u.LimitedBy = p.limit()
	u.Unmeasured = p.unmeasured
	return u
}
