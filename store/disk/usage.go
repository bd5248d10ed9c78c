package disk

import "github.com/kvconn/kvconn/store/disk/fsio"

// limitBy says what keeps a store from growing.
type limitBy string

// The limits of a store: its cap, and the space that must stay free for others.
const (
	limitedByCap  limitBy = "cap"
	limitedByFree limitBy = "free"
)

// usage is the state of a space at one moment.
type usage struct {
	// freeSlots can be written to, pendingSlots wait for a barrier. badSlots failed to be
	// written or read and are set aside; restingSlots failed once and are tried again.
	freeSlots, pendingSlots, badSlots, restingSlots int64
	// segments are all there are, retiringSegments those of them that are being given up.
	segments, retiringSegments int
	// physicalBytes is what the store occupies: segments and the larger of what the journal
	// occupies and what is set aside for it. smallBytes are the manifests and whatever else lies
	// in the directory, setAsideBytes files that could not be used or removed.
	physicalBytes, segmentBytes, journalBytes, smallBytes, setAsideBytes int64
	// maxBytes is the cap, capSource where it comes from.
	maxBytes  int64
	capSource string
	// room is the file system's, minFreeBytes what the store leaves free of it.
	room         fsio.Room
	minFreeBytes int64
	// effectiveMaxBytes is how large the store can become, limitedBy what keeps it from growing
	// now, or empty.
	effectiveMaxBytes int64
	limitedBy         limitBy
	// making says that a segment is being made, unmeasured for how many measurements more none
	// is, since not all files could be measured.
	making     bool
	unmeasured int
}

// usage returns the state of the space.
func (p *space) usage() (u usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.classes {
		u.freeSlots += int64(len(c.free))
		u.pendingSlots += c.pending
		u.making = u.making || c.making
	}
	u.badSlots, u.restingSlots = int64(len(p.bad)), p.coolingSlots()
	u.segments, u.retiringSegments = len(p.segments), len(p.retiring)
	u.physicalBytes, u.segmentBytes, u.journalBytes = p.bytes+p.reserved(p.allSlots()), p.bytes, p.journalB
	u.smallBytes, u.setAsideBytes = p.smallB, p.asideBytes()
	u.maxBytes, u.capSource, u.room, u.minFreeBytes = p.maxBytes, p.capSource, p.room, p.minFree
	u.effectiveMaxBytes, u.limitedBy = p.limit()
	u.unmeasured = p.unmeasured
	return u
}
