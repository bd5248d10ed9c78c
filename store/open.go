package store

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

	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// Store is an open record store.
type Store struct {
	opts  Options
	id    format.StoreID
	epoch uint64
	lock  io.Closer

	table      *index.Table
	journal    *journal.Journal
	space      *space
	namespaces namespaces
	leases     leases
	headers    headerPool
	reads      reads
	writes     writes
	gate       gate
	verifying  *queue[*ReadOp]
	commits    *queue[commit]
	events     eventLog

	subscriptions subscriptions
	barrier       *barrier
	count         counters
	seq           atomic.Uint64
	opens         uint64

	evictSignal chan struct{}
	stop        context.CancelFunc
	background  sync.WaitGroup // evictor, barriers, janitor
	committed   sync.WaitGroup // committer
	writers     sync.WaitGroup
	readers     sync.WaitGroup
	verifiers   sync.WaitGroup

	// calibrated is set if the read depth is to be the calibration's.
	calibrated   bool
	calibration  Calibration
	direct       bool
	recovered    Recovery
	openDuration time.Duration
	warnMu       sync.Mutex
	warnings     []string
	closeOnce    sync.Once
	closeErr     error
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
	s := &Store{opts: o, calibrated: calibrated, table: index.New(), barrier: newBarrier(), commits: newQueue[commit](),
		verifying:   newQueue[*ReadOp](),
		evictSignal: make(chan struct{}, 1)}
	s.leases.init(o.MaxLeases)
	s.reads.init(o.ReadInFlightBytes, o.ChunkBytes)
	s.writes.init()
	s.gate.init(o.Writers)
	s.events.init()
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
	note, err := s.readFormat()
	if err != nil {
		return err
	}
	for _, dir := range []string{segmentDir, namespaceDir, journalDir} {
		if err := s.opts.fs.MkdirAll(filepath.Join(s.opts.Dir, dir)); err != nil {
			return err
		}
	}
	if s.direct, err = s.probeDirect(); err != nil {
		return err
	}
	if !s.direct {
		s.warn(errors.New("file system has no direct I/O: reads and writes go through the page cache, slowly"))
	}
	s.setSpace(note)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	s.dropManifests()
	s.calibrate()
	s.start()
	if s.opts.checkOnly {
		return nil
	}
	return s.shrink(ctx)
}

func (s *Store) lockDir() error {
	if err := s.opts.fs.MkdirAll(s.opts.Dir); err != nil {
		return err
	}
	name, _ := os.Executable()
	holder := fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(name))
	lock, err := s.opts.fs.Lock(filepath.Join(s.opts.Dir, lockFile), holder)
	var locked *disk.LockedError
	if errors.As(err, &locked) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	s.lock = lock
	return err
}

// probeDirect reports whether the file system has direct I/O, and fails if nothing can be
// written at all.
func (s *Store) probeDirect() (bool, error) {
	path := filepath.Join(s.opts.Dir, segmentDir, "probe")
	_ = s.opts.fs.Remove(path)
	direct := true
	f, err := s.opts.fs.OpenFile(path, true, true)
	if errors.Is(err, disk.ErrNoDirectIO) {
		direct = false
		f, err = s.opts.fs.OpenFile(path, true, false)
	}
	if err != nil {
		return false, err
	}
	err = f.WriteVec(disk.AlignedBytes(disk.Align), nil, 0)
	return direct, errors.Join(err, f.Close(), s.opts.fs.Remove(path))
}

const (
	// segmentsOfCap is how many segments a cap is divided into at least.
	segmentsOfCap = 32
	// memTablePart of the cap is the size of a memtable.
	memTablePart = 512
	// filesOfCap bounds the number of segment files of a large cap.
	filesOfCap = 4096
)

func (s *Store) setSpace(note formatNote) {
	limit := s.opts.MaxBytes
	if limit == 0 {
		limit = note.DefaultMaxBytes
	}
	nominal := max(s.opts.SegmentBytes, limit/filesOfCap)
	s.space = &space{
		fs: s.opts.fs, dir: filepath.Join(s.opts.Dir, segmentDir), store: s.id, table: s.table,
		direct: s.direct, maxBytes: limit, nominal: min(nominal, limit/segmentsOfCap),
		memTable:  min(max(limit/memTablePart, journal.MinMemTableBytes), journal.MaxMemTableBytes),
		manifests: s.namespaces.bytes,
		classes:   make(map[int64]*class), segments: make(map[uint32]*segment), nextID: 1,
	}
	if s.opts.checkOnly {
		// The cap it is used with is not known: the journal's logs must not grow.
		s.space.memTable = journal.MinMemTableBytes
	}
}

// epochBits keep an epoch exact in JSON readers that have floating-point numbers only.
const epochBits = 53

// opensShift leaves a trillion records to each of 16 million openings.
const opensShift = 40

func (s *Store) start() {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.committed.Add(1)
	go s.committer()
	s.background.Add(5)
	go s.tidyNamespaces(ctx)
	go s.healer(ctx)
	go s.evictor(ctx)
	go s.runBarriers(ctx)
	go s.janitor(ctx)
	if s.opts.ScrubBytesPerS > 0 {
		s.background.Add(1)
		go s.scrub(ctx)
	}
	for range s.writerCount() {
		s.writers.Add(1)
		go s.writer()
	}
	for range verifierCount() {
		s.verifiers.Add(1)
		go s.verifier()
	}
	for range s.readerCount() {
		s.readers.Add(1)
		go s.reader()
	}
}

// writerCount is enough for [Options].Writers to be in the disk while others compute
// checksums.
func (s *Store) writerCount() int { return s.opts.Writers + (s.opts.Writers+1)/2 }

// readerCount is enough to keep the budget in flight while some readers verify.
func (s *Store) readerCount() int {
	const least, most = 8, 64
	return min(max(int(2*s.opts.ReadInFlightBytes/int64(s.opts.ChunkBytes)), least), most)
}

// janitor ends leases that ran out and measures the journal.
func (s *Store) janitor(ctx context.Context) {
	defer s.background.Done()
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.expireLeases()
		if n%journalMeasureEvery == 0 {
			s.measureJournal()
			s.space.retryFull()
			if !s.opts.checkOnly && s.space.over() > 0 {
				if err := s.shrink(ctx); err != nil {
					s.opts.Logger.Warn("store: cannot shrink to its cap", "err", err,
						"remedy", "look for I/O errors in the kernel's log, then restart kvconnd")
				}
			}
		}
	}
}

const journalMeasureEvery = 10

func (s *Store) measureJournal() {
	n, err := s.opts.fs.PhysicalBytes(filepath.Join(s.opts.Dir, journalDir))
	if err != nil {
		return
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.journalB = n
}

// shrink gives up the coldest segments until the store is within its cap.
func (s *Store) shrink(ctx context.Context) error {
	for s.space.over() > 0 {
		g := s.colderSegment(nil, nil)
		if g == nil {
			return fmt.Errorf("store is %d bytes over its cap and every segment is in use: %w", s.space.over(), ErrBusy)
		}
		if err := s.retire(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) warn(err error) {
	s.opts.Logger.Warn("store: " + err.Error())
	s.warnMu.Lock()
	defer s.warnMu.Unlock()
	s.warnings = append(s.warnings, err.Error())
}
