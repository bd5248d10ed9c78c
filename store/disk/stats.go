package disk

import (
	"encoding/hex"
	"time"

	"github.com/kvconn/kvconn/store"
)

// Stats is the state of a store at one moment. Counters run from the store's opening. The tags
// are those of package counters.
type Stats struct {
	// Dir and StoreID say which store this is, Epoch which opening of it ([Store.Epoch]).
	Dir     string `json:"dir"`
	StoreID string `json:"store_id"`
	Epoch   uint64 `json:"epoch"`

	Records    int64 `json:"records" metric:"records" help:"Records on disk."`
	Namespaces int   `json:"namespaces"`
	Segments   int   `json:"segments"`
	// FreeSlots can be written to, PendingSlots wait for a barrier. BadSlots failed to be
	// written or read and are set aside; RestingSlots failed once and are tried again.
	FreeSlots    int64 `json:"free_slots" metric:"free_slots" help:"Slots of segments that can be written to."`
	PendingSlots int64 `json:"pending_slots"`
	BadSlots     int64 `json:"bad_slots"`
	RestingSlots int64 `json:"resting_slots"`
	// RetiringSegments are being given up, AwaitedSegments could not be opened or read at the
	// start and are tried again.
	RetiringSegments int   `json:"retiring_segments"`
	AwaitedSegments  int64 `json:"awaited_segments"`

	// PhysicalBytes is what the store occupies: segments and the larger of what the
	// journal occupies and what is set aside for it. MaxBytes is the cap.
	PhysicalBytes int64 `json:"physical_bytes" metric:"physical_bytes" help:"Bytes the store occupies on disk, everything included."`
	SegmentBytes  int64 `json:"segment_bytes"`
	JournalBytes  int64 `json:"journal_bytes"`
	MaxBytes      int64 `json:"max_bytes" metric:"max_bytes" help:"Hard cap of kvconn_store_physical_bytes."`
	PayloadBytes  int64 `json:"payload_bytes"`
	// CapSource says where MaxBytes comes from.
	CapSource string `json:"cap_source"`
	// SetAsideBytes are of files that could not be opened, read or removed. They are part of
	// SegmentBytes, and those that can be opened are the first to go when room is needed.
	SetAsideBytes int64 `json:"set_aside_bytes"`
	// FileSystemBytes is the size of the store's file system, FreeBytes what of it is free,
	// MinFreeBytes what the store leaves free (0 if nothing need be).
	FileSystemBytes int64 `json:"file_system_bytes" metric:"filesystem_bytes" help:"Size of the store's file system."`
	FreeBytes       int64 `json:"free_bytes" metric:"filesystem_free_bytes" help:"Free bytes of the store's file system."`
	MinFreeBytes    int64 `json:"min_free_bytes" metric:"min_free_bytes" help:"What the store leaves free of its file system."`
	// EffectiveMaxBytes is how large the store can become: MaxBytes, or less where the file
	// system leaves less. LimitedBy is what keeps it from growing now, or empty.
	EffectiveMaxBytes int64   `json:"effective_max_bytes" metric:"effective_max_bytes" help:"What the store can reach now: its cap, or less where free space leaves less."`
	LimitedBy         LimitBy `json:"limited_by"`

	Lookups      uint64 `json:"lookups"`
	LookupBlocks uint64 `json:"lookup_blocks" metric:"lookup_blocks_total" help:"Blocks asked for."`
	HitBlocks    uint64 `json:"hit_blocks" metric:"hit_blocks_total" help:"Blocks asked for that were there."`

	Reads        uint64 `json:"reads" metric:"reads_total" help:"Records read and verified."`
	ReadBytes    uint64 `json:"read_bytes" metric:"read_bytes_total" help:"Bytes read and verified."`
	ReadsGone    uint64 `json:"reads_gone" metric:"reads_gone_total" help:"Reads of records that were not there any more."`
	Mismatched   uint64 `json:"reads_mismatched" metric:"reads_mismatched_total" help:"Reads of records made of another prefix."`
	ReadErrors   uint64 `json:"read_errors" metric:"read_errors_total" help:"Reads that the system failed."`
	ReadTimeouts uint64 `json:"read_timeouts" metric:"read_timeouts_total" help:"Reads that did not end by their deadline."`
	// Corrupt records failed verification and were dropped, Unreadable ones failed to be
	// read twice.
	Corrupt    uint64 `json:"corrupt" metric:"corrupt_records_total" help:"Records that failed verification and were dropped."`
	Unreadable uint64 `json:"unreadable"`

	Writes       uint64 `json:"writes" metric:"writes_total" help:"Records written."`
	WriteBytes   uint64 `json:"write_bytes" metric:"write_bytes_total" help:"Bytes written."`
	WritesOfSame uint64 `json:"writes_of_same"`
	WriteErrors  uint64 `json:"write_errors" metric:"write_errors_total" help:"Writes that the system failed."`
	// WritesRefused did not fit the cap or the byte budget, or found no slot.
	WritesRefused uint64 `json:"writes_refused" metric:"writes_refused_total" help:"Writes refused because a budget was used up."`
	Evicted       uint64 `json:"evicted" metric:"evicted_records_total" help:"Records evicted to stay below the cap."`
	Barriers      uint64 `json:"barriers" metric:"barriers_total" help:"Barriers, those that failed included."`
	BarrierErrors uint64 `json:"barrier_errors" metric:"barrier_errors_total" help:"Barriers that failed: what was written since is not durable."`

	// Scrubs are complete passes of the background scrub.
	Scrubs     uint64 `json:"scrubs"`
	ScrubBytes uint64 `json:"scrub_bytes" metric:"scrub_bytes_total" help:"Bytes that the background scrub read and verified."`

	QueuedReads        int64 `json:"queued_reads" metric:"queued_reads" help:"Records that wait to be read from disk."`
	ReadInFlightBytes  int64 `json:"read_in_flight_bytes" metric:"read_in_flight_bytes" help:"Bytes being read from disk."`
	WriteInFlightBytes int64 `json:"write_in_flight_bytes" metric:"write_in_flight_bytes" help:"Bytes accepted and not yet written."`
	// ReadSpeed is how fast the disk has been of late.
	ReadSpeed store.Speed `json:"read_speed" metric:""`
	Leases    int         `json:"leases" metric:"leases" help:"Leases that pin records for loads."`

	// ReadBudgetBytes is how much reads may ask of the disk at one time, WriteBudgetBytes how
	// much writes may give it beyond the few that always go on, Calibration where that comes
	// from (nil if it was not measured).
	ReadBudgetBytes  int64        `json:"read_budget_bytes" metric:"read_budget_bytes" help:"Bytes that are asked of the disk at one time at most."`
	WriteBudgetBytes int64        `json:"write_budget_bytes"`
	Calibration      *Calibration `json:"calibration,omitempty"`

	// DirectIO is false where the filesystem has no O_DIRECT: correct but slow.
	DirectIO bool     `json:"direct_io"`
	Warnings []string `json:"warnings,omitempty"`

	OpenDuration time.Duration `json:"open_duration_ns"`
	// Recovered says where the index came from: see [Recovery].
	Recovered Recovery `json:"recovered"`
	// Rebuild is how far the reading of record headers is that a damaged journal makes
	// necessary. It goes on while the store is in use.
	Rebuild RebuildState `json:"rebuild"`
	// IndexBytes is the memory of the index.
	IndexBytes int64 `json:"index_bytes"`
}

// LimitBy says what keeps a store from growing.
type LimitBy = limitBy

// The limits of a store: its cap, and the space that must stay free for others.
const (
	LimitedByCap  = limitedByCap
	LimitedByFree = limitedByFree
)

// RebuildState is how far the rebuilding of the index from record headers is.
type RebuildState struct {
	// Running is true until every segment has been read.
	Running      bool  `json:"running"`
	Segments     int64 `json:"segments"`
	SegmentsDone int64 `json:"segments_done"`
	Slots        int64 `json:"slots"`
	SlotsDone    int64 `json:"slots_done"`
	// Records were found in headers that the journal did not know; Damaged headers could
	// not be read.
	Records int64 `json:"records"`
	Damaged int64 `json:"damaged"`
}

// Recovery says where a store's index came from when it was opened.
type Recovery string

// The ways an index comes to be.
const (
	RecoveredNew      Recovery = "new"
	RecoveredSnapshot Recovery = "snapshot"
	RecoveredJournal  Recovery = "journal"
	RecoveredHeaders  Recovery = "headers"
)

// Stats returns the state of the store.
func (s *Store) Stats() Stats {
	st := Stats{
		Dir: s.opts.Dir, StoreID: hex.EncodeToString(s.id[:]), Epoch: s.epoch,
		Records: int64(s.table.Len()), PayloadBytes: s.table.PayloadBytes(), IndexBytes: s.table.MemoryBytes(),
		Namespaces: s.namespaces.Count(), Leases: s.leases.count(),
		WriteInFlightBytes: s.writes.inFlightBytes(),
		DirectIO:           s.direct, OpenDuration: s.openDuration, Recovered: s.recovered,
	}
	st.ReadBudgetBytes = s.opts.ReadInFlightBytes
	if s.calibration.ReadInFlightBytes > 0 {
		c := s.calibration
		st.Calibration = &c
	}
	st.WriteBudgetBytes, _ = s.gate.State()
	st.QueuedReads, st.ReadInFlightBytes = s.reads.Depth()
	st.ReadSpeed = s.Speed()
	st.Rebuild, st.AwaitedSegments = s.rebuilt.state(), s.awaiting.Load()
	st.takeUsage(s.space.usage())
	s.count.stats(&st)
	st.Warnings = s.report.Warnings()
	return st
}

func (st *Stats) takeUsage(u usage) {
	st.FreeSlots, st.PendingSlots, st.BadSlots, st.RestingSlots = u.freeSlots, u.pendingSlots, u.badSlots, u.restingSlots
	st.Segments, st.RetiringSegments = u.segments, u.retiringSegments
	st.PhysicalBytes, st.SegmentBytes, st.JournalBytes, st.SetAsideBytes = u.physicalBytes, u.segmentBytes, u.journalBytes, u.setAsideBytes
	st.MaxBytes, st.CapSource = u.maxBytes, u.capSource
	st.FileSystemBytes, st.FreeBytes, st.MinFreeBytes = u.room.TotalBytes, u.room.FreeBytes, u.minFreeBytes
	st.EffectiveMaxBytes, st.LimitedBy = u.effectiveMaxBytes, u.limitedBy
}

func (c *counters) stats(st *Stats) {
	st.Lookups, st.LookupBlocks, st.HitBlocks = c.lookups.Load(), c.lookupBlocks.Load(), c.hitBlocks.Load()
	st.Reads, st.ReadBytes, st.ReadsGone = c.reads.Load(), c.readBytes.Load(), c.gone.Load()
	st.Mismatched, st.ReadErrors = c.mismatched.Load(), c.readErrors.Load()
	st.ReadTimeouts, st.Corrupt = c.readTimeouts.Load(), c.corrupt.Load()
	st.Writes, st.WriteBytes, st.WritesOfSame = c.writes.Load(), c.writeBytes.Load(), c.same.Load()
	st.WriteErrors, st.WritesRefused, st.Evicted = c.writeErrors.Load(), c.denied.Load(), c.evicted.Load()
	st.Barriers, st.BarrierErrors = c.barriers.Load(), c.barrierErrors.Load()
	st.Scrubs, st.ScrubBytes, st.Unreadable = c.scrubs.Load(), c.scrubBytes.Load(), c.unreadable.Load()
}
