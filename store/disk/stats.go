package disk

import (
	"encoding/hex"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/disk/stats"
)

// Stats is the state of a store at one moment.
type Stats = stats.Stats

// The types of parts of [Stats].
type (
	Usage        = segment.Usage
	LimitBy      = segment.LimitBy
	RebuildState = recovery.RebuildState
	Recovery     = recovery.Recovery
)

// The limits of a store: its cap, and the space that must stay free for others.
const (
	LimitedByCap  = segment.LimitedByCap
	LimitedByFree = segment.LimitedByFree
)

// The ways an index comes to be.
const (
	RecoveredNew      = recovery.RecoveredNew
	RecoveredSnapshot = recovery.RecoveredSnapshot
	RecoveredJournal  = recovery.RecoveredJournal
	RecoveredHeaders  = recovery.RecoveredHeaders
)

var (
	_ store.Tier     = (*Store)(nil)
	_ store.Exporter = (*Store)(nil)
)

// Name is disk.
func (s *Store) Name() string { return "disk" }

// Usage is what the store holds and may hold on disk.
func (s *Store) Usage() store.Usage {
	st := s.Stats()
	u := store.Usage{Records: st.Records, UsedBytes: st.PhysicalBytes, MaxBytes: st.MaxBytes, ReachableBytes: st.MaxBytes, Hits: st.Reads}
	if st.FileSystemBytes > 0 {
		u.ReachableBytes = st.EffectiveMaxBytes
	}
	return u
}

// Stats returns the state of the store.
func (s *Store) Stats() Stats {
	st := Stats{
		Dir: s.opts.Dir, StoreID: hex.EncodeToString(s.state.ID[:]), Epoch: s.epoch,
		Records: int64(s.table.Len()), PayloadBytes: s.table.PayloadBytes(), IndexBytes: s.table.MemoryBytes(),
		Namespaces: s.namespaces.Count(), Leases: s.leases.Count(),
		WriteInFlightBytes: s.writes.inFlightBytes(),
		DirectIO:           s.state.Direct, OpenDuration: s.openDuration, Recovered: s.state.Recovered,
	}
	st.ReadBudgetBytes = s.opts.ReadInFlightBytes
	if s.calibration.ReadInFlightBytes > 0 {
		c := s.calibration
		st.Calibration = &c
	}
	st.WriteBudgetBytes, _ = s.gate.State()
	st.QueuedReads, st.ReadInFlightBytes = s.reads.Depth()
	st.ReadSpeed = s.Speed()
	st.Rebuild, st.AwaitedSegments = s.rebuild.State(), s.rebuild.Awaiting()
	st.Usage, st.Hidden = s.space.Usage(), s.state.Hidden()
	s.count.Fill(&st)
	st.Purged, st.Quota = s.purges.Removed(), s.quotas.Stats()
	kept := s.table.Kept()
	st.Pinned, st.PinnedBytes, st.PinnedGivenUp, st.PinsLost = kept.Records, kept.Bytes, kept.GivenUp, s.pins.Lost()
	st.Warnings = s.report.Warnings()
	return st
}
