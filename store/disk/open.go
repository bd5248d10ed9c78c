package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/queue"
	"github.com/kvconn/kvconn/store/disk/readio"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/disk/stamp"
)

// Store is an open record store.
type Store struct {
	opts  Options
	id    format.StoreID
	epoch uint64
	lock  io.Closer

	table      *index.Table
	journal    *journal.Journal
	limits     limits
	space      *space
	reclaim    *reclaimer
	namespaces *namespace.Registry
	leases     leases
	headers    readio.Headers
	reads      *readio.Reader
	writes     writes
	gate       *readio.Gate
	commits    *queue.Queue[commit]
	events     events

	subscriptions subscriptions
	barrier       *durability
	count         counters
	seq           atomic.Uint64
	opens         uint64

	doubts     readio.Doubts
	stop       context.CancelFunc
	background sync.WaitGroup // evictor, barriers, janitor, shrinker, scrub
	committed  sync.WaitGroup // committer
	writers    sync.WaitGroup

	// calibrated is set if the read depth is to be the calibration's.
	calibrated   bool
	calibration  Calibration
	direct       bool
	recovered    Recovery
	openDuration time.Duration
	rebuilt      rebuilt
	awaiting     atomic.Int64 // segments that the disk did not give at the start
	// opening is what is open and not yet the store's, while it opens.
	opening *opening
	// stamp is nil if it cannot be written; it is used by whoever makes a barrier, as is
	// barriers, the number of the last one.
	stamp       *stamp.File
	stampFailed bool
	barriers    atomic.Uint64
	created     uint64 // the opening that made the journal, 0 if it is not known
	report      report.Report
	closeOnce   sync.Once
	closeErr    error
}

// Open opens the store in o.Dir, making it if there is none. It fails with [ErrInUse]
// while another process holds the directory and with [ErrNewerFormat] if a newer program
// made it. ctx bounds the opening alone.
func Open(ctx context.Context, o Options) (*Store, error) {
	calibrated := o.ReadInFlightBytes == 0
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, calibrated: calibrated, barrier: newBarrier(), commits: queue.New[commit]()}
	s.leases.init(o.MaxLeases)
	s.writes.init()
	s.gate = readio.NewGate(o.Writers)
	s.reads = readio.New(readio.Options{
		Budget: o.ReadInFlightBytes, ChunkBytes: o.ChunkBytes, Timeout: o.ReadTimeout, Clock: o.clock,
		Gate: s.gate, Headers: &s.headers, Records: records{s},
	})
	s.events.init(o.EventBytes)
	s.report.Logger = o.Logger
	s.namespaces = namespace.New(namespace.Options{
		FS: o.fs, Dir: filepath.Join(o.Dir, namespaceDir), Report: &s.report,
		Claim: func(n int) error { return s.reclaim.claimManifest(n) }, Unclaim: func(n int) { s.reclaim.unclaimManifest(n) }, Reused: s.events.log.Skip,
	})
	s.rebuilt.ended = make(chan struct{})
	s.epoch = mathrand.Uint64N(1<<epochBits-1) + 1
	began := time.Now()
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", o.Dir, err), s.undoOpen())
	}
	s.openDuration = time.Since(began)
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	if err := s.lockDir(); err != nil {
		return err
	}
	defer s.report.Tell(s.opts.Progress)()
	formatted, err := s.readFormat()
	if err != nil {
		return err
	}
	if err := s.makeDirs(); err != nil {
		return err
	}
	s.cleanUp()
	if s.direct, err = s.probeDirect(); err != nil {
		return err
	}
	if !s.direct {
		s.report.Warn("file system has no direct I/O: reads and writes go through the page cache, slowly")
	}
	o := opening{nextID: 1, missing: make(map[uint32]uint32)}
	s.opening = &o
	if o.files, err = s.inspectSegments(ctx); err != nil {
		return err
	}
	s.openStamp(&o)
	if err := s.identify(&formatted, &o); err != nil {
		return err
	}
	s.replaceStamp(&o)
	if o.stamped && o.stamp.Store != s.id {
		o.stamp, o.stamped = stamp.Stamp{}, false
	}
	if err := s.findLimits(o.files); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.recover(ctx, &o); err != nil {
		return err
	}
	s.opening = nil
	awaited := o.awaited()
	s.awaiting.Store(int64(len(awaited)))
	if len(s.unreadSegments()) == 0 && len(awaited) == 0 { // else a record that names one may not be found yet
		s.namespaces.DropManifests()
	}
	s.space.measureFiles()
	s.report.WarnOfNotes()
	s.calibrate()
	s.reclaim = newReclaimer(reclaimerOptions{
		space: s.space, barrier: s.barrier, commit: s.evict, slotWait: s.opts.SlotWait, logger: s.opts.Logger,
	})
	run := s.start()
	if s.opts.checkOnly {
		return nil
	}
	if !s.rebuilt.running() { // else the shrinker does it when what the store holds is known
		if err := s.reclaim.shrinkFirst(ctx); err != nil {
			return err
		}
	}
	s.background.Go(func() { s.awaitSegments(run, awaited) })
	s.background.Go(func() { s.reclaim.shrinker(run) })
	return nil
}

func (s *Store) lockDir() error {
	if s.opts.held != nil {
		s.lock = s.opts.held
		return nil
	}
	if err := s.opts.fs.MkdirAll(s.opts.Dir); err != nil {
		return err
	}
	name, _ := os.Executable()
	holder := fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(name))
	path := filepath.Join(s.opts.Dir, lockFile)
	if fsio.IsDir(s.opts.fs, path) {
		s.setAside(path)
	}
	lock, err := s.opts.fs.Lock(path, holder)
	var locked *fsio.LockedError
	if errors.As(err, &locked) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	s.lock = lock
	return err
}

// probeDirect reports whether the file system has direct I/O, and fails if nothing can be
// written at all.
func (s *Store) probeDirect() (bool, error) {
	path := filepath.Join(s.opts.Dir, segmentDir, probeFile)
	direct := true
	f, err := s.opts.fs.OpenFile(path, true, true)
	if errors.Is(err, fsio.ErrNoDirectIO) {
		direct = false
		f, err = s.opts.fs.OpenFile(path, true, false)
	}
	if err != nil {
		return false, err
	}
	err = f.WriteVec(store.AlignedBuffer(fsio.Align), nil, 0)
	return direct, errors.Join(err, f.Close(), s.opts.fs.Remove(path))
}

// findLimits finds out how much the store may occupy.
func (s *Store) findLimits(files []*segmentFile) (err error) {
	o := limitOptions{
		fs: s.opts.fs, root: s.opts.Dir, dir: filepath.Join(s.opts.Dir, segmentDir), maxBytes: s.opts.MaxBytes,
		segmentBytes: s.opts.SegmentBytes, minFree: minFreeRule{s.opts.MinFreeBytes, s.opts.MinFreePercent},
		checkOnly: s.opts.checkOnly, told: true, report: &s.report,
	}
	for _, f := range files {
		o.sizes += f.size
		o.told = o.told && !f.untold()
	}
	s.limits, err = findLimits(o)
	return err
}

// newSpace returns a space without segments, with an index without records.
func (s *Store) newSpace(o *opening) *space {
	return newSpace(spaceOptions{
		fs: s.opts.fs, root: s.opts.Dir, dir: filepath.Join(s.opts.Dir, segmentDir), journalDir: filepath.Join(s.opts.Dir, journalDir),
		others: []string{namespaceDir},
		fixed:  map[string]bool{lockFile: true, formatFile: true, stampFile: true, calibrationFile: true, snapshotFile: true, segmentDir: true, journalDir: true},
		store:  s.id, table: index.New(), journal: s.journal, direct: s.direct, report: &s.report,
		nextID: o.nextID, awaited: o.missing,
	}, s.limits)
}

// epochBits keep an epoch exact in JSON readers that have floating-point numbers only.
const epochBits = 53

// opensShift leaves a trillion records to each of 16 million openings.
const opensShift = index.SeqBits

// start starts the goroutines of a store that is filled, and returns the context that ends
// with it.
func (s *Store) start() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.committed.Add(1)
	go s.committer()
	for _, f := range []func(context.Context){s.tidyNamespaces, s.healer, s.reclaim.evictor, s.runBarriers, s.janitor} {
		s.background.Go(func() { f(ctx) })
	}
	s.startRebuild(ctx)
	if s.opts.ScrubBytesPerS > 0 {
		s.background.Go(func() { s.scrub(ctx) })
	}
	for range s.writerCount() {
		s.writers.Add(1)
		go s.writer()
	}
	s.reads.Start()
	return ctx
}

// writerCount is enough for the writes that the gate lets into the disk while others
// compute checksums.
func (s *Store) writerCount() int { return s.gate.Most() + (s.gate.Most()+1)/2 }
