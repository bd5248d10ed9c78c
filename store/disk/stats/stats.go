// Package stats is what a store on disk tells of itself: its state, and what it has counted.
package stats

import (
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/calibrate"
	"github.com/kvconn/kvconn/store/disk/quota"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// Stats is the state of a store at one moment. Counters run from the store's opening. The tags
// are those of package counters.
type Stats struct {
	// Dir and StoreID say which store this is, Epoch which opening of it (Epoch of the store).
	Dir     string `json:"dir"`
	StoreID string `json:"store_id"`
	Epoch   uint64 `json:"epoch"`

	Records    int64 `json:"records" metric:"records" help:"Records on disk."`
	Namespaces int   `json:"namespaces"`
	// Usage is what segments and journal occupy, and may.
	segment.Usage
	// Hidden are on disk and not used.
	recovery.Hidden
	// AwaitedSegments could not be opened or read at the start and are tried again.
	AwaitedSegments int64 `json:"awaited_segments"`
	PayloadBytes    int64 `json:"payload_bytes"`

	Lookups      uint64 `json:"lookups"`
	LookupBlocks uint64 `json:"lookup_blocks" metric:"lookup_blocks_total" help:"Blocks that were looked up in the store."`
	HitBlocks    uint64 `json:"hit_blocks" metric:"hit_blocks_total" help:"Blocks that were looked up in the store and found."`

	Reads        uint64 `json:"reads" metric:"reads_total" help:"Records read and verified."`
	ReadBytes    uint64 `json:"read_bytes" metric:"read_bytes_total" help:"Bytes read and verified."`
	ReadsGone    uint64 `json:"reads_gone" metric:"reads_gone_total" help:"Reads of records that had been evicted or dropped by then."`
	Mismatched   uint64 `json:"reads_mismatched" metric:"reads_mismatched_total" help:"Reads that found a record of another prefix under the same key."`
	ReadErrors   uint64 `json:"read_errors" metric:"read_errors_total" help:"Reads that failed with an I/O error."`
	ReadTimeouts uint64 `json:"read_timeouts" metric:"read_timeouts_total" help:"Reads that missed their deadline."`
	// Corrupt records failed verification and were dropped, Unreadable ones failed to be
	// read twice.
	Corrupt    uint64 `json:"corrupt" metric:"corrupt_records_total" help:"Records that failed verification and were dropped."`
	Unreadable uint64 `json:"unreadable"`

	Writes       uint64 `json:"writes" metric:"writes_total" help:"Records written."`
	WriteBytes   uint64 `json:"write_bytes" metric:"write_bytes_total" help:"Bytes written."`
	WritesOfSame uint64 `json:"writes_of_same"`
	WriteErrors  uint64 `json:"write_errors" metric:"write_errors_total" help:"Writes that failed with an I/O error."`
	// WritesRefused did not fit the cap or the byte budget, or found no slot.
	WritesRefused uint64 `json:"writes_refused" metric:"writes_refused_total" help:"Writes refused because the write queue was full."`
	Evicted       uint64 `json:"evicted" metric:"evicted_records_total" help:"Records evicted to stay below the cap."`
	// Pinned records stay until a time, PinnedGivenUp had to go with the segment that they were in.
	Pinned        int64  `json:"pinned" metric:"pinned_records" help:"Records that an administrator has pinned."`
	PinnedBytes   int64  `json:"pinned_bytes" metric:"pinned_bytes" help:"Bytes of the payloads of pinned records."`
	PinnedGivenUp uint64 `json:"pinned_given_up" metric:"pinned_given_up_records_total" help:"Pinned records that were evicted: a whole segment had to be given up, and each had some."`
	PinsLost      bool   `json:"pins_lost"`
	Purged        uint64 `json:"purged" metric:"purged_records_total" help:"Records that an administrator had removed."`
	// Quota is what tenants' quotas have done.
	Quota         quota.Stats `json:"quota" metric:""`
	Barriers      uint64      `json:"barriers" metric:"barriers_total" help:"Barriers, which make what was written durable; failed ones included."`
	BarrierErrors uint64      `json:"barrier_errors" metric:"barrier_errors_total" help:"Barriers that failed: what was written since the last good one may be lost in a crash."`

	// Scrubs are complete passes of the background scrub.
	Scrubs     uint64 `json:"scrubs"`
	ScrubBytes uint64 `json:"scrub_bytes" metric:"scrub_bytes_total" help:"Bytes that the background scrub read and verified."`

	QueuedReads        int64 `json:"queued_reads" metric:"queued_reads" help:"Records that wait in the disk's queue."`
	ReadInFlightBytes  int64 `json:"read_in_flight_bytes" metric:"read_in_flight_bytes" help:"Bytes being read from disk."`
	WriteInFlightBytes int64 `json:"write_in_flight_bytes" metric:"write_in_flight_bytes" help:"Bytes accepted and not yet written."`
	// ReadSpeed is how fast the disk has been of late.
	ReadSpeed store.Speed `json:"read_speed" metric:""`
	Leases    int         `json:"leases" metric:"leases" help:"Leases that pin records for loads."`

	// ReadBudgetBytes is how much reads may ask of the disk at one time, WriteBudgetBytes how
	// much writes may give it beyond the few that always go on, Calibration where that comes
	// from (nil if it was not measured).
	ReadBudgetBytes  int64             `json:"read_budget_bytes" metric:"read_budget_bytes" help:"Bound on the bytes that are requested from the disk at one time."`
	WriteBudgetBytes int64             `json:"write_budget_bytes"`
	Calibration      *calibrate.Result `json:"calibration,omitempty"`

	// DirectIO is false where the filesystem has no O_DIRECT: correct but slow.
	DirectIO bool     `json:"direct_io"`
	Warnings []string `json:"warnings,omitempty"`

	OpenDuration time.Duration `json:"open_duration_ns"`
	// Recovered says where the index came from: see [recovery.Recovery].
	Recovered recovery.Recovery `json:"recovered"`
	// Rebuild is how far the reading of record headers is that a damaged journal makes
	// necessary. It goes on while the store is in use.
	Rebuild recovery.RebuildState `json:"rebuild"`
	// IndexBytes is the memory of the index.
	IndexBytes int64 `json:"index_bytes"`
}

// Counters are the running totals of [Stats].
type Counters struct {
	Lookups, LookupBlocks, HitBlocks              atomic.Uint64
	Reads, ReadBytes, Gone, Mismatched            atomic.Uint64
	ReadErrors, ReadTimeouts, Corrupt             atomic.Uint64
	Writes, WriteBytes, Same, WriteErrors, Denied atomic.Uint64
	Evicted, Barriers, BarrierErrors              atomic.Uint64
	Scrubs, ScrubBytes, Unreadable                atomic.Uint64
}

// Fill sets the totals of st.
func (c *Counters) Fill(st *Stats) {
	st.Lookups, st.LookupBlocks, st.HitBlocks = c.Lookups.Load(), c.LookupBlocks.Load(), c.HitBlocks.Load()
	st.Reads, st.ReadBytes, st.ReadsGone = c.Reads.Load(), c.ReadBytes.Load(), c.Gone.Load()
	st.Mismatched, st.ReadErrors = c.Mismatched.Load(), c.ReadErrors.Load()
	st.ReadTimeouts, st.Corrupt = c.ReadTimeouts.Load(), c.Corrupt.Load()
	st.Writes, st.WriteBytes, st.WritesOfSame = c.Writes.Load(), c.WriteBytes.Load(), c.Same.Load()
	st.WriteErrors, st.WritesRefused, st.Evicted = c.WriteErrors.Load(), c.Denied.Load(), c.Evicted.Load()
	st.Barriers, st.BarrierErrors = c.Barriers.Load(), c.BarrierErrors.Load()
	st.Scrubs, st.ScrubBytes, st.Unreadable = c.Scrubs.Load(), c.ScrubBytes.Load(), c.Unreadable.Load()
}
