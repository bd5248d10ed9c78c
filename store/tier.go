package store

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Level is a place that loads come from: host memory, or a tier. It knows which records it has
// and how fast it delivers them. Its methods may be called from any goroutine and never wait for
// I/O.
type Level interface {
	// Name is what metrics, status and logs call the level: host, disk, object.
	Name() string
	// Present sets at[i] where the record of keys[i] is there, without counting as a use, and
	// leaves the rest of at as it is. A load may still find a record gone. A level that can't deliver
	// at the moment may say that it has none; it has them again later.
	Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
	// Speed is how fast records come from there at the moment.
	Speed() Speed
	// Usage is how much the level holds.
	Usage() Usage
}

// Speed is how fast a level delivers what loads ask of it.
type Speed struct {
	// BytesPerS are bytes delivered a second while at least one request was in flight; 0 means
	// not measured yet. Idle time counts nothing, so a device that is asked for little at a time
	// may do better when it is asked for more.
	BytesPerS float64 `json:"bytes_per_s"`
	// QueuedBytes were asked for and are not delivered: a new read waits for them.
	QueuedBytes int64 `json:"queued_bytes" metric:"read_queued_bytes" help:"Bytes requested from the disk and not delivered yet."`
	// AheadBytes are those of QueuedBytes that no load has asked for, by [ReadOp].Ahead. They delay a load
	// little: there are few at a time, and the load that they are read for joins their read.
	AheadBytes int64 `json:"-"`
	// LatencyS is the time in seconds from a record's first request to its last byte.
	LatencyS float64 `json:"latency_s" metric:"read_latency_seconds" help:"Recent time from the first request of a record to its last byte."`
	// PerRank says that each rank reads at that speed by itself, as from host memory. Otherwise
	// all ranks share it.
	PerRank bool `json:"-"`
}

// BatchReader is a tier that reads many small records at one time better than a few.
type BatchReader interface {
	// BatchBytes is how much is read best at one time, in bytes of payloads.
	BatchBytes() int
}

// Batch is how many records with payloads of that size a tier reads best at one time, 0 if it does not matter.
func Batch(t Tier, payloadBytes int) int {
	if b, ok := t.(BatchReader); ok && payloadBytes > 0 {
		return b.BatchBytes() / payloadBytes
	}
	return 0
}

// Usage is how much a level holds and may hold.
type Usage struct {
	Records   int64
	UsedBytes int64
	MaxBytes  int64
	// ReachableBytes is what the level can reach now: less than MaxBytes where a file system
	// leaves it no more room.
	ReachableBytes int64
	// Hits are records that were found and verified there since the start.
	Hits uint64
}

// Tier keeps records.
type Tier interface {
	Level
	Reader
	Writer
	Namespaces
	Leases
	Events
	// Probe reads and verifies one record of the tier into memory of its own, like any other
	// read, so that Speed stays up to date while no load asks for anything. It returns [ErrGone]
	// if there is none, and the errors of [Reader].
	Probe(ctx context.Context) error
	// Close ends the tier. Writes that were accepted are finished and calls of Read have
	// returned when it returns, so that nothing calls a done or uses a buffer afterwards; where a
	// device does not answer it gives up with [ErrTimeout]. Calls that come later fail with
	// [ErrClosed], or find nothing. Another call of Close returns the result of the first.
	Close() error
}

// Leases finds prefixes and keeps them from being evicted.
type Leases interface {
	// Lookup returns the number of leading blocks of chain that are there with every one of
	// shards, and a lease that pins their records for ttl, or less where the tier bounds it. The
	// lease is 0 if there is nothing to pin; any other is to be released, one that has ended too.
	// The records count as used. Lookup does not wait for I/O.
	Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (blocks int, id LeaseID)
	// Touch counts as a use of the records of keys that are there, like Lookup, but gaps do not end
	// it and it pins nothing. It does not wait for I/O.
	Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key)
	// Renew gives a lease ttl from now. It reports false if the lease has ended.
	Renew(id LeaseID, ttl time.Duration) bool
	// Release ends a lease. A lease that has ended already is ignored.
	Release(id LeaseID)
}

// LeaseID names a lease that [Leases] gave. Zero is no lease.
type LeaseID uint64

// Namespaces are the models whose records a tier keeps, each with its own layout.
type Namespaces interface {
	// OpenNamespace makes the namespace that m describes known, and returns its digest. It does
	// not wait for I/O. Every call is to be followed by one of CloseNamespace.
	OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error)
	// CloseNamespace says that an engine which had opened the namespace has gone.
	CloseNamespace(ns connector.NamespaceDigest)
	// PayloadBytes is the size in bytes that all payloads of a namespace's shard have; 0 while
	// there is none, and for a namespace that is not known.
	PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int
	// HoldPayload fixes the size in bytes of the payloads of a namespace's shard until
	// ReleasePayload, for an engine that registers its memory. It fails with a [PayloadSizeError]
	// if the shard has records of another size, or an engine holds another.
	HoldPayload(ns connector.NamespaceDigest, shard connector.Shard, bytes int) error
	// ReleasePayload ends one HoldPayload.
	ReleasePayload(ns connector.NamespaceDigest, shard connector.Shard)
}

// NamespaceInfo describes a namespace of a store.
type NamespaceInfo struct {
	Digest connector.NamespaceDigest
	// Manifest is the canonical JSON, or nil if it was lost with its file.
	Manifest []byte
	// Forgotten is set where there are neither records nor engines any more, but there may
	// be subscribers that have not come to the removal of the last record.
	Forgotten bool
}

// Contents are what a tier holds of one namespace.
type Contents struct {
	NamespaceInfo
	// Records of it, and the bytes of their payloads.
	Records, Bytes int64
	// Hits are blocks that look-ups have found, LastUse when the last was found or a record was last saved, since the
	// opening.
	Hits    uint64
	LastUse time.Time
	// Sessions are how often it is open: schedulers and ranks of engines.
	Sessions int
}
