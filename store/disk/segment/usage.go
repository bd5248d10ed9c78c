package segment

// LimitBy says what keeps a store from growing.
type LimitBy string

// The limits of a store: its cap, and the space that must stay free for others.
const (
	LimitedByCap  LimitBy = "cap"
	LimitedByFree LimitBy = "free"
)

// Usage is the state of a space at one moment.
type Usage struct {
	Segments int `json:"segments"`
	// FreeSlots can be written to, PendingSlots wait for a barrier. BadSlots failed to be
	// written or read and are set aside; RestingSlots failed once and are tried again.
	FreeSlots    int64 `json:"free_slots" metric:"free_slots" help:"Slots for records that can be written to."`
	PendingSlots int64 `json:"pending_slots"`
	BadSlots     int64 `json:"bad_slots"`
	RestingSlots int64 `json:"resting_slots"`
	// RetiringSegments are being given up.
	RetiringSegments int `json:"retiring_segments"`

	// PhysicalBytes is what the store occupies: segments and the larger of what the
	// journal occupies and what is set aside for it. MaxBytes is the cap.
	PhysicalBytes int64 `json:"physical_bytes" metric:"physical_bytes" help:"Bytes that the store takes of the disk: occupied and reserved, indexes and journals included."`
	SegmentBytes  int64 `json:"segment_bytes"`
	JournalBytes  int64 `json:"journal_bytes"`
	MaxBytes      int64 `json:"max_bytes" metric:"max_bytes" help:"Hard cap of kvconn_store_physical_bytes."`
	// CapSource says where MaxBytes comes from.
	CapSource string `json:"cap_source"`
	// SetAsideBytes are of files that could not be opened, read or removed. They are part of
	// SegmentBytes, and those that can be opened are the first to go when room is needed.
	SetAsideBytes int64 `json:"set_aside_bytes"`
	// FileSystemBytes is the size of the store's file system, FreeBytes what of it is free,
	// MinFreeBytes what the store leaves free (0 if nothing need be).
	FileSystemBytes int64 `json:"file_system_bytes" metric:"filesystem_bytes" help:"Size of the store's file system."`
	FreeBytes       int64 `json:"free_bytes" metric:"filesystem_free_bytes" help:"Free bytes of the store's file system."`
	MinFreeBytes    int64 `json:"min_free_bytes" metric:"min_free_bytes" help:"Bytes that the store leaves free on its file system."`
	// EffectiveMaxBytes is how large the store can become: MaxBytes, or less where the file
	// system leaves less. LimitedBy is what keeps it from growing now, or empty.
	EffectiveMaxBytes int64   `json:"effective_max_bytes" metric:"effective_max_bytes" help:"Size that the store can reach now: its cap, or less where the file system has less free space."`
	LimitedBy         LimitBy `json:"limited_by"`

	// SmallBytes are the manifests and whatever else lies in the directory. Making says that a
	// segment is being made, Unmeasured for how many measurements more none is, since not all files
	// could be measured.
	SmallBytes int64 `json:"-"`
	Making     bool  `json:"-"`
	Unmeasured int   `json:"-"`
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
	u.MaxBytes, u.CapSource = p.limits.MaxBytes, p.limits.capSource
	u.FileSystemBytes, u.FreeBytes, u.MinFreeBytes = p.limits.room.TotalBytes, p.limits.room.FreeBytes, p.limits.minFree
	u.EffectiveMaxBytes, u.LimitedBy = p.limit()
	u.Unmeasured = p.unmeasured
	return u
}
