package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

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

// formatNote is the content of the FORMAT file.
type formatNote struct {
	Format  int    `json:"format"`
	StoreID string `json:"store_id"`
	// DefaultMaxBytes is the cap that was derived from the free space at first open.
	DefaultMaxBytes int64 `json:"default_max_bytes"`
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

// readFormat reads the FORMAT file, or makes it for a new store.
func (s *Store) readFormat() (formatNote, error) {
	path := filepath.Join(s.opts.Dir, formatFile)
	b, err := s.opts.fs.ReadFile(path)
	if disk.IsNotExist(err) {
		return s.makeFormat(path)
	}
	if err != nil {
		return formatNote{}, err
	}
	var note formatNote
	if err := json.Unmarshal(b, &note); err != nil {
		return note, fmt.Errorf("read %s: %w", path, err)
	}
	if note.Format > format.Version {
		return note, fmt.Errorf("%s has format %d, this program knows %d: %w", path, note.Format, format.Version, ErrNewerFormat)
	}
	id, err := hex.DecodeString(note.StoreID)
	if err != nil || len(id) != len(s.id) {
		return note, fmt.Errorf("read %s: store_id %q: want %d hexadecimal digits", path, note.StoreID, 2*len(s.id))
	}
	copy(s.id[:], id)
	return note, nil
}

// freeSpacePart of the free space is the cap of a store that was given none.
const freeSpacePartNum, freeSpacePartDen = 4, 5

func (s *Store) makeFormat(path string) (formatNote, error) {
	if _, err := rand.Read(s.id[:]); err != nil {
		return formatNote{}, err
	}
	if id, ok := s.adoptStoreID(); ok {
		s.id = id
	}
	free, err := s.opts.fs.FreeBytes(s.opts.Dir)
	if err != nil {
		return formatNote{}, err
	}
	note := formatNote{
		Format:          format.Version,
		StoreID:         hex.EncodeToString(s.id[:]),
		DefaultMaxBytes: max(MinMaxBytes, free/freeSpacePartDen*freeSpacePartNum),
	}
	b, err := json.MarshalIndent(note, "", "  ")
	if err != nil {
		return note, err
	}
	return note, s.opts.fs.WriteFileAtomic(path, append(b, '\n'))
}

// adoptStoreID finds the identity of a store whose FORMAT file was lost in the header of
// a segment.
func (s *Store) adoptStoreID() (format.StoreID, bool) {
	for _, path := range s.segmentFiles() {
		f, err := s.opts.fs.OpenFile(path, false, false)
		if err != nil {
			continue
		}
		var head format.Segment
		b := disk.AlignedBytes(format.HeaderBytes)
		err = f.ReadVec(b, nil, 0)
		_ = f.Close()
		if err == nil && head.Decode(b) == nil {
			return head.Store, true
		}
	}
	return format.StoreID{}, false
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
		memTable: min(max(limit/memTablePart, journal.MinMemTableBytes), journal.MaxMemTableBytes),
		classes:  make(map[int64]*class), segments: make(map[uint32]*segment), nextID: 1,
	}
	if s.opts.checkOnly {
		// The cap it is used with is not known: the journal's logs must not grow.
		s.space.memTable = journal.MinMemTableBytes
	}
}

// openJournal opens the journal. One that is corrupt is discarded: everything in it can be
// found in the segments' headers.
func (s *Store) openJournal() error {
	dir := filepath.Join(s.opts.Dir, journalDir)
	o := journal.Options{
		Dir: dir, FS: s.opts.journalFS, CacheBytes: s.opts.JournalCacheBytes,
		MemTableBytes: s.space.memTable, Logger: s.opts.Logger,
	}
	j, err := journal.Open(o)
	if err == nil {
		if err = s.checkJournal(j); err != nil {
			err = errors.Join(err, j.Close())
		}
	}
	if err != nil && journalIsLost(err) {
		s.warn(fmt.Errorf("journal is discarded: %w", err))
		if err := s.opts.journalFS.RemoveAll(dir); err != nil {
			return err
		}
		if j, err = journal.Open(o); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	s.journal, s.space.journal = j, j
	return nil
}

var errForeignJournal = errors.New("journal belongs to another store")

func journalIsLost(err error) bool {
	return errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errForeignJournal) || errors.Is(err, os.ErrNotExist)
}

// Names of the journal's small values.
const (
	metaStore = "store" // the store's identity
	metaOpens = "opens" // how often the store was opened
	// metaRecords is the number of records at the last barrier: a hint for the next open.
	metaRecords = "records"
)

func (s *Store) checkJournal(j *journal.Journal) error {
	id, err := j.Meta(metaStore)
	if err != nil {
		return err
	}
	if id != nil && string(id) != string(s.id[:]) {
		return errForeignJournal
	}
	return nil
}

// stampJournal notes, durably, that the store was opened once more. Sequence numbers of
// different openings never meet, even where the journal lost the last ones, and a
// snapshot of an earlier opening is not taken for the state of this one.
func (s *Store) stampJournal() error {
	s.opens++
	s.seq.Store(max(s.seq.Load(), s.opens<<opensShift))
	return errors.Join(
		s.journal.PutMeta(metaStore, s.id[:]),
		s.journal.PutMeta(metaOpens, binary.LittleEndian.AppendUint64(nil, s.opens)),
		s.journal.Barrier(),
	)
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
	s.background.Add(3)
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
					s.opts.Logger.Warn("store: cannot shrink to its cap", "err", err)
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

// undoOpen gives back what a failed Open took.
func (s *Store) undoOpen() error {
	var errs []error
	if s.stop != nil {
		return s.Close()
	}
	if s.space != nil {
		for _, g := range s.space.segments {
			errs = append(errs, g.file.Close())
		}
	}
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	s.table.Close()
	return errors.Join(errs...)
}

// Close stops the store: writes that were accepted are finished, everything is made
// durable, and a snapshot of the index is written so that the next open is quick. Calls
// of Read that are under way end by their deadlines first.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	s.writes.close()
	s.writers.Wait()
	s.reads.close()
	s.verifying.close()
	s.verifiers.Wait()
	_, hung := s.reads.depth()
	if hung == 0 {
		s.readers.Wait()
	}
	s.stop()
	s.background.Wait()
	s.commits.close()
	s.committed.Wait()
	s.events.close()
	subscribed := s.subscriptions.close()
	s.barrier.touch()
	s.runBarrier()
	s.barrier.close()
	err := s.makeDurable()
	if err == nil {
		if err = s.journal.Flush(); err == nil && hung == 0 {
			err = s.saveSnapshot()
		}
	}
	err = errors.Join(err, subscribed, s.journal.Close())
	if hung == 0 {
		for _, g := range s.space.segments {
			err = errors.Join(err, g.file.Close())
		}
		s.table.Close()
	}
	err = errors.Join(err, s.lock.Close())
	if err != nil {
		return fmt.Errorf("close store %s: %w", s.opts.Dir, err)
	}
	return nil
}
