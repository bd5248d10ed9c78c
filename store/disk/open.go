package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store/disk/barrier"
	"github.com/kvconn/kvconn/store/disk/lease"
	"github.com/kvconn/kvconn/store/disk/purge"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/disk/stats"
	"github.com/kvconn/kvconn/store/disk/steer"
	"github.com/kvconn/kvconn/store/eventlog"

	mathrand "math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/pins"
	"github.com/kvconn/kvconn/store/disk/queue"
	"github.com/kvconn/kvconn/store/disk/quota"
	"github.com/kvconn/kvconn/store/disk/readio"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/record"
)

// Store is an open record store.
type Store struct {
	opts  Options
	epoch uint64

	// state is the store's directory, opened; table, journal and space are its.
	state      *recovery.State
	table      *index.Table
	journal    *journal.Journal
	space      *segment.Space
	rebuild    *recovery.Rebuild
	reclaim    *segment.Reclaimer
	namespaces *namespace.Registry
	leases     *lease.Table
	headers    readio.Headers
	opener     record.Opener
	builder    record.Builder
	reads      *readio.Reader
	writes     writes
	gate       *readio.Gate
	commits    *queue.Queue[commit]
	events     *eventlog.Log

	// Steering is what an administrator may have done.
	*steer.Steering
	purges        *purge.Purges
	pins          *pins.Pins
	quotas        *quota.Quotas
	subscriptions eventlog.Subscriptions
	barrier       *barrier.Barrier
	count         stats.Counters
	seq           atomic.Uint64

	doubts     readio.Doubts
	stop       context.CancelFunc
	background sync.WaitGroup // evictor, barriers, janitor, shrinker, scrub
	committed  sync.WaitGroup // committer
	writers    sync.WaitGroup

	// calibrated is set if the read depth is to be the calibration's.
	calibrated   bool
	calibration  Calibration
	openDuration time.Duration
	report       report.Report
	closeOnce    sync.Once
	closeErr     error
}

// Errors of opening a store, beside those of package store: see those of package recovery.
var (
	ErrInUse           = recovery.ErrInUse
	ErrSegmentsMissing = recovery.ErrSegmentsMissing
	ErrNewerFormat     = recovery.ErrNewerFormat
)

// Open opens the store in o.Dir, making it if there is none. It fails with [ErrInUse]
// while another process holds the directory and with [ErrNewerFormat] if a newer program
// made it. ctx bounds the opening alone.
func Open(ctx context.Context, o Options) (*Store, error) {
	calibrated := o.ReadInFlightBytes == 0
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, calibrated: calibrated, commits: queue.New[commit]()}
	s.builder.Ring = o.Ring
	s.opener = record.Opener{Ring: o.Ring, SumsOnly: o.checkOnly}
	s.leases = lease.New(o.MaxLeases)
	s.writes.init()
	s.gate = readio.NewGate(o.Writers)
	s.reads = readio.New(readio.Options{
		Budget: o.ReadInFlightBytes, ChunkBytes: o.ChunkBytes, Timeout: o.ReadTimeout, Clock: o.clock,
		Gate: s.gate, Headers: &s.headers, Records: records{s}, Sealed: o.Ring != nil,
	})
	s.barrier = barrier.New(s.makeBarrier, o.Logger)
	s.purges = purge.New(s.commitPurge, s.Sync)
	s.events = eventlog.New(o.EventBytes)
	s.report.Logger = o.Logger
	s.namespaces = namespace.New(namespace.Options{
		FS: o.fs, Dir: filepath.Join(o.Dir, recovery.NamespaceDir), Report: &s.report,
		Claim: func(n int) error { return s.reclaim.ClaimManifest(n) }, Unclaim: func(n int) { s.reclaim.UnclaimManifest(n) }, Reused: s.events.Skip,
	})
	s.subscriptions.Log, s.subscriptions.Digest = s.events, s.namespaces.Digest
	s.epoch = mathrand.Uint64N(1<<epochBits-1) + 1
	began := time.Now()
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	s.openDuration = time.Since(began)
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	o, told := &s.opts, func() {}
	defer func() { told() }()
	st, err := recovery.Open(ctx, recovery.Options{
		Dir: o.Dir, MaxBytes: o.MaxBytes, MaxPercent: o.MaxPercent, MinFree: segment.MinFree{Bytes: o.MinFreeBytes, Percent: o.MinFreePercent},
		SegmentBytes: o.SegmentBytes, JournalCacheBytes: o.JournalCacheBytes, ForgetSegments: o.ForgetSegments, KeepHidden: o.KeepHidden,
		CheckOnly: o.checkOnly, Held: o.held, Locked: func() { told = s.report.Tell(o.Progress) }, FS: o.fs, JournalFS: o.journalFS,
		Report: &s.report, Namespaces: s.namespaces, Opener: &s.opener,
	})
	if err != nil {
		return err
	}
	s.state, s.table, s.journal, s.space = st, st.Table, st.Journal, st.Space
	s.seq.Store(st.Seq)
	s.calibrate()
	s.reclaim = segment.NewReclaimer(segment.ReclaimerOptions{
		Space: s.space, Barrier: s.barrier, Commit: s.evict, SlotWait: o.SlotWait, Logger: o.Logger,
	})
	s.pins = pins.New(pins.Options{
		Table: s.table, FS: o.fs, Dir: o.Dir, Number: s.namespaces.Number, Seq: s.seq.Load, MaxBytes: int64(float64(st.Limits.MaxBytes) * o.PinMaxPercent / 100),
		Claim: s.reclaim.ClaimManifest, Measured: func() { s.reclaim.Measure(true) }, Clock: o.clock, Logger: o.Logger,
	})
	s.quotas = quota.New(quota.Options{Limits: o.Quotas, Table: s.table, Evict: s.evictOf, Wait: o.SlotWait})
	s.rebuild = recovery.NewRebuild(st, s.adopt, func() bool { _, bytes := s.reads.Depth(); return bytes > 0 })
	s.Steering = steer.New(steer.Options{
		Table: s.table, Namespaces: s.namespaces, Purges: s.purges, Pins: s.pins, Seq: s.seq.Load,
		Complete:    func(namespace uint16) bool { return s.rebuild.FindsAll() && !s.state.Hides(namespace) },
		AllComplete: func() bool { return s.rebuild.FindsAll() && s.state.Hidden() == recovery.Hidden{} },
	})
	run := s.start()
	if o.checkOnly {
		return nil
	}
	s.pins.Load(ctx) // before anything is evicted
	s.background.Go(func() { s.quotas.Run(run) })
	if len(s.space.Unread()) == 0 { // else the shrinker does it when what the store holds is known
		before := s.table.Len()
		if err := s.reclaim.ShrinkFirst(ctx); err != nil {
			return errors.Join(err, s.Close())
		}
		if left := s.table.Len(); left < before {
			o.Logger.Warn("store: the cap or the space is less than before: records were evicted", "evicted", before-left, "left", left,
				"remedy", "raise max_bytes or free space if that was not meant")
		}
	}
	s.background.Go(func() { s.pins.Run(run, s.rebuild.FindsAll) })
	s.background.Go(func() { s.rebuild.Await(run) })
	s.background.Go(func() { s.reclaim.Shrinker(run) })
	return nil
}

// epochBits keep an epoch exact in JSON readers that have floating-point numbers only.
const epochBits = 53

// start starts the goroutines of a store that is filled, and returns the context that ends
// with it.
func (s *Store) start() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.committed.Go(s.committer)
	makeBarriers := func(ctx context.Context) { s.barrier.Run(ctx, s.opts.BarrierInterval) }
	heal := func(ctx context.Context) { s.state.Heal(ctx, s.opts.healPauses, s.heal) }
	for _, f := range []func(context.Context){s.tidyNamespaces, heal, s.reclaim.Evictor, makeBarriers, s.janitor, s.rebuild.Run} {
		s.background.Go(func() { f(ctx) })
	}
	if s.opts.ScrubBytesPerS > 0 {
		s.background.Go(func() { s.scrub(ctx) })
	}
	for range s.writerCount() {
		s.writers.Go(s.writer)
	}
	s.reads.Start()
	return ctx
}

// writerCount is enough for the writes that the gate lets into the disk while others
// compute checksums.
func (s *Store) writerCount() int { return s.gate.Most() + (s.gate.Most()+1)/2 }
