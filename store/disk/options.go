package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/quota"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/eventlog"
	"github.com/kvconn/kvconn/store/seal"
)

// Options says how a store is opened. The zero value of a field means its default, which
// [Options.EnsureDefaults] fills in.
type Options struct {
	// Dir is the store's directory. It is made if it is not there; its parent must exist.
	Dir string
	// MaxBytes is the hard cap on physical bytes under Dir, everything included (segments,
	// journal, snapshot). 0 means 80% of the space that is free in the filesystem of its
	// segments, or the store's own, when it is opened: higher leaves no room for what else writes to the filesystem.
	MaxBytes int64
	// MaxPercent says the same as a share of that filesystem, 0 to 100; MaxBytes overrides it.
	MaxPercent float64
	// MinFreeBytes is what the store leaves free in the filesystem of its segments, whoever
	// uses the rest: it makes no segment that would take it, and gives segments back when there
	// is less. 0 means MinFreePercent; a negative value means that nothing need stay free.
	MinFreeBytes int64
	// MinFreePercent says the same as a share of that filesystem, 0 to 100. 0 means the larger
	// of 5% of it and 10 GiB, but at most a quarter.
	MinFreePercent float64
	// SegmentBytes is the nominal size of a segment file. Default 256 MiB: a filesystem
	// allocates that in few extents, and a cap is not left unused by more than part of
	// one. Small caps use smaller segments.
	SegmentBytes int64
	// LeaseMax bounds the time of one lease and of one renewal. Default 60 s: longer than
	// any load, short enough that a forgotten lease does not fill the store.
	LeaseMax time.Duration
	// MaxLeases bounds the leases held at one time. Default and maximum 32768.
	MaxLeases int
	// ReadInFlightBytes is how much is asked of the disk at one time. Default: what the
	// calibration found, or without one 8 MiB: on the class of disk measured more makes
	// reads slower, less leaves it idle.
	ReadInFlightBytes int64
	// Calibrate has the first opening measure how much the disk should be asked for, and
	// given, at one time; it takes a second. The result is kept in the directory.
	Calibrate bool
	// WriteInFlightBytes bounds the bytes of accepted writes that are not done. Default
	// 64 MiB: enough to keep the disk busy, little enough that a stop drains quickly.
	WriteInFlightBytes int64
	// ChunkBytes is the size of one request to the disk, a multiple of 4096. Default 1 MiB:
	// smaller ones cost more processor time, larger ones leave a disk with a few requests
	// idle between them.
	ChunkBytes int
	// Writers is how many records are written to the disk at one time, a quarter of that
	// while any is read. Default 0: 8, and more if the calibration found that the disk
	// needs more bytes in flight, up to 64.
	Writers int
	// ReadTimeout is how long one record may take from its first request to the disk.
	// Default 5 s.
	ReadTimeout time.Duration
	// SlotWait is how long a write waits for a slot to be freed before it fails with
	// [store.ErrBusy]. Default 2 s: several barriers.
	SlotWait time.Duration
	// BarrierInterval is how often what was written is made durable. Default 500 ms: at
	// 100 ms the syncs cost a disk that is written to all the time a tenth of its
	// bandwidth, and what a crash loses is only the newest cache.
	BarrierInterval time.Duration
	// JournalCacheBytes is the size of Pebble's block cache. Default 8 MiB: the journal is
	// read at open only.
	JournalCacheBytes int64
	// ScrubBytesPerS is the rate at which all records are read and verified in the
	// background, again and again. 0 means no scrub.
	ScrubBytesPerS int64
	// EventBytes bounds the memory of events that subscribers have yet to read: it is taken
	// only while one is behind, as each is while it reads a snapshot. Default 256 MiB: two
	// minutes of 50,000 records a second.
	EventBytes int64
	// Quotas are how many bytes of slots tenants may have: see [Store.SetQuotas].
	Quotas quota.Limits
	// ForgetSegments opens a store whose segments are all gone, as an empty one. Without it
	// that is [ErrSegmentsMissing].
	ForgetSegments bool
	// KeepHidden has a rebuild from headers not end if there are records that the ring does not open: a later opening with
	// their keys finds them. Without it their slots are free from then on.
	KeepHidden bool
	// PinMaxPercent is which part of the cap may be pinned, 90 at most; negative for nothing. Default 50: saves need room, and what is used most
	// stays without a pin.
	PinMaxPercent float64
	// Progress, if set, is called once the directory is held and from then on about once a
	// second until the store is open, with what is being done and how much of it. total is 0
	// where it is not known.
	Progress func(stage string, done, total int64)
	// CloseWait is how long Close waits for a disk that does not answer. Default 5 min.
	CloseWait time.Duration
	// Ring, if not nil, seals what is written. Then only sealed records are used: others are misses. Without
	// it sealed records are.
	Ring *seal.Ring
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger

	// fs and journalFS are the file systems, clock the time: seams for tests.
	fs        fsio.FS
	journalFS vfs.FS
	clock     func() time.Time
	// healPauses are those of the healer.
	healPauses recovery.Pauses
	// checkOnly opens the store for a check: nothing is evicted to fit a cap.
	checkOnly bool
	// held, if not nil, is the lock of the directory, which the caller has. The store closes it.
	held io.Closer
}

// WithFS returns the options with other file systems for payloads and journal: a seam for
// the tests and benchmarks below this directory, which alone can name the types.
func (o Options) WithFS(files fsio.FS, journalFiles vfs.FS) Options {
	o.fs, o.journalFS = files, journalFiles
	return o
}

// MinMaxBytes is the smallest cap a store accepts: the journal's fixed cost and a few
// records.
const MinMaxBytes = segment.MinBytes

// MaxPinPercent is the largest PinMaxPercent.
const MaxPinPercent = 90

const (
	defaultSegmentBytes       = 256 << 20
	defaultLeaseMax           = time.Minute
	maxLeases                 = 32768
	defaultReadInFlightBytes  = 8 << 20
	defaultWriteInFlightBytes = 64 << 20
	defaultChunkBytes         = 1 << 20
	defaultReadTimeout        = 5 * time.Second
	defaultSlotWait           = 2 * time.Second
	defaultCloseWait          = 5 * time.Minute
	defaultBarrierInterval    = 500 * time.Millisecond
	defaultJournalCacheBytes  = 8 << 20
	defaultEventBytes         = 256 << 20
	defaultPinMaxPercent      = 50
)

// EnsureDefaults fills in every field that is zero, except MaxBytes, whose default needs
// the directory.
func (o *Options) EnsureDefaults() {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, defaultSegmentBytes)
	o.LeaseMax = cmp.Or(o.LeaseMax, defaultLeaseMax)
	o.MaxLeases = cmp.Or(o.MaxLeases, maxLeases)
	o.ReadInFlightBytes = cmp.Or(o.ReadInFlightBytes, defaultReadInFlightBytes)
	o.WriteInFlightBytes = cmp.Or(o.WriteInFlightBytes, defaultWriteInFlightBytes)
	o.ChunkBytes = cmp.Or(o.ChunkBytes, defaultChunkBytes)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	o.SlotWait = cmp.Or(o.SlotWait, defaultSlotWait)
	o.CloseWait = cmp.Or(o.CloseWait, defaultCloseWait)
	o.BarrierInterval = cmp.Or(o.BarrierInterval, defaultBarrierInterval)
	o.JournalCacheBytes = cmp.Or(o.JournalCacheBytes, defaultJournalCacheBytes)
	o.EventBytes = cmp.Or(o.EventBytes, defaultEventBytes)
	o.PinMaxPercent = cmp.Or(o.PinMaxPercent, defaultPinMaxPercent)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.fs == nil {
		o.fs = fsio.OS{}
	}
	if o.journalFS == nil {
		o.journalFS = vfs.Default
	}
	o.healPauses = cmp.Or(o.healPauses, recovery.DefaultPauses())
	if o.clock == nil {
		o.clock = time.Now
	}
}

// Validate reports the first option that cannot be used. It is meant to be called after
// [Options.EnsureDefaults].
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("store options: Dir is empty")
	case o.MaxBytes != 0 && o.MaxBytes < MinMaxBytes:
		return fmt.Errorf("store options: MaxBytes %d: at least %d", o.MaxBytes, int64(MinMaxBytes))
	case o.MaxPercent < 0 || o.MaxPercent >= 100:
		return fmt.Errorf("store options: MaxPercent %v: 0 to 100", o.MaxPercent)
	case o.MinFreePercent < 0 || o.MinFreePercent >= 100:
		return fmt.Errorf("store options: MinFreePercent %v: 0 to 100", o.MinFreePercent)
	case o.SegmentBytes < 1<<20 || o.SegmentBytes > 64<<30:
		return fmt.Errorf("store options: SegmentBytes %d: 1 MiB to 64 GiB", o.SegmentBytes)
	case !(o.PinMaxPercent <= MaxPinPercent):
		return fmt.Errorf("store options: PinMaxPercent %v: at most %d", o.PinMaxPercent, MaxPinPercent)
	case o.LeaseMax < 0:
		return fmt.Errorf("store options: LeaseMax %v is negative", o.LeaseMax)
	case o.MaxLeases < 1 || o.MaxLeases > maxLeases:
		return fmt.Errorf("store options: MaxLeases %d: 1 to %d", o.MaxLeases, maxLeases)
	case o.ReadInFlightBytes < int64(o.ChunkBytes):
		return fmt.Errorf("store options: ReadInFlightBytes %d is less than ChunkBytes %d",
			o.ReadInFlightBytes, o.ChunkBytes)
	case o.WriteInFlightBytes < 0:
		return fmt.Errorf("store options: WriteInFlightBytes %d is negative", o.WriteInFlightBytes)
	case o.ChunkBytes < 2*fsio.Align || o.ChunkBytes%fsio.Align != 0:
		return fmt.Errorf("store options: ChunkBytes %d: want a multiple of %d, at least two",
			o.ChunkBytes, fsio.Align)
	case o.ScrubBytesPerS < 0:
		return fmt.Errorf("store options: ScrubBytesPerS %d is negative", o.ScrubBytesPerS)
	case o.EventBytes < eventlog.LeastBytes:
		return fmt.Errorf("store options: EventBytes %d: at least %d", o.EventBytes, int64(eventlog.LeastBytes))
	case o.Writers < 0 || o.Writers > 256:
		return fmt.Errorf("store options: Writers %d: 0 to 256", o.Writers)
	case o.ReadTimeout < 0 || o.SlotWait < 0 || o.BarrierInterval < 0 || o.CloseWait < 0:
		return errors.New("store options: a duration is negative")
	}
	if err := o.Quotas.Validate(); err != nil {
		return fmt.Errorf("store options: %w", err)
	}
	return nil
}
