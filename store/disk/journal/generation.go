package journal

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// generation is one Pebble database. When it fails, what Pebble's goroutines hold cannot be
// told: it is left as it is, read once more for what the next generation needs, and then
// its files are closed under it and removed.
type generation struct {
	opts   Options
	number uint64
	dir    string
	db     *pebble.DB

	failed chan struct{}
	once   sync.Once
	reason atomic.Pointer[error]
	// parked is closed when a goroutine of Pebble stays for good: the database can be
	// neither written to nor closed. One that is only corrupt can still be closed.
	parked   chan struct{}
	parkOnce sync.Once

	// reading is held shared by each step of a subscriber's snapshot, and taken by discard.
	reading   sync.RWMutex
	discarded atomic.Bool
	files     openFiles
}

func newGeneration(o Options, number uint64) *generation {
	return &generation{opts: o, number: number, dir: generationDir(o.FS, o.Dir, number), failed: make(chan struct{}), parked: make(chan struct{})}
}

func openGeneration(o Options, number uint64) (*generation, error) {
	g := newGeneration(o, number)
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	po := g.pebbleOptions(cache)
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		var r result
		r.db, r.err = openPebble(g.dir, po)
		opened <- r
	}()
	var r result
	select {
	case r = <-opened:
	case <-g.parked: // it may never come
	}
	g.db = r.db
	if r.err == nil {
		if r.err = g.failure(); r.err == nil {
			return g, nil
		}
		if r.db != nil { // it met damage: its lock is let go of
			_ = g.close()
		}
	}
	g.discard()
	return nil, fmt.Errorf("open journal %s: %w", g.dir, r.err)
}

// openPebble makes an error of a panic: Pebble answers some damage of its files that way.
func openPebble(dir string, po *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
		}
	}()
	return pebble.Open(dir, po)
}

func (g *generation) pebbleOptions(cache *pebble.Cache) *pebble.Options {
	var told sync.Once // Pebble tries again and again, and says so each time
	po := &pebble.Options{
		Cache: cache,
		FS:    failFS{g.opts.FS, g},
		// The default is the oldest format that Pebble still reads.
		FormatMajorVersion: formatMajorVersion,
		MemTableSize:       uint64(g.opts.MemTableBytes),
		// A flush that falls behind must not stop writes at once.
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		MaxOpenFiles:                256,
		Logger:                      (*logger)(g),
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				told.Do(func() { g.opts.Logger.Error("journal: background error, it is tried again", "err", err) })
			},
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				g.fail(fmt.Errorf("%w: %s: %w", ErrCorrupt, info.Path, info.Details))
			},
			WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
				g.opts.Logger.Warn("journal: writes stalled", "reason", info.Reason)
			},
		},
	}
	// Reads must not wait for a lock that a failed write may hold.
	po.Experimental.ReadSamplingMultiplier = -1
	for i := range po.Levels {
		po.Levels[i].BlockSize = 4 << 10
		po.Levels[i].IndexBlockSize = 256 << 10
	}
	return po
}

const formatMajorVersion = pebble.FormatValueSeparation

// close closes the database, unless a goroutine in it stays for good.
func (g *generation) close() error {
	result := make(chan error, 1)
	go func() { result <- unlessClosed(g.db.Close) }()
	var err error
	select {
	case err = <-result:
	case <-g.parked:
	}
	if err == nil {
		err = g.failure()
	}
	if err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

func (g *generation) call(what string, f func() error) error {
	err := g.failure()
	if err == nil {
		err = g.guard(f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// guard runs f in a goroutine of its own, since a journal that fails takes the goroutine
// with it (see failFS), or has f wait for one that it took. It returns the error of f, or
// that of the journal; in that case f may still be running, and what it uses must not be
// touched again.
func (g *generation) guard(f func() error) error {
	result := make(chan error, 1)
	go func() { result <- unlessClosed(f) }()
	select {
	case err := <-result:
		return err
	case <-g.failed:
		return g.failure()
	}
}

// unlessClosed turns the panic with which Pebble answers the use of a closed database into
// an error.
func unlessClosed(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			closed, ok := r.(error)
			if !ok || !errors.Is(closed, pebble.ErrClosed) {
				panic(r)
			}
			err = closed
		}
	}()
	return f()
}

func (g *generation) failure() error {
	select {
	case <-g.failed:
		return fmt.Errorf("%w: %w", ErrFailed, *g.reason.Load())
	default:
		return nil
	}
}

var errGivenUp = errors.New("given up")

func (g *generation) fail(reason error) {
	g.once.Do(func() {
		g.reason.Store(&reason)
		close(g.failed)
		if !g.discarded.Load() {
			g.opts.Logger.Error("journal: failed: nothing is saved until a new one is written; loads go on", "reason", reason,
				"remedy", "free space or descriptors, or look for I/O errors in the kernel's log")
		}
	})
}

// park fails the generation and keeps the calling goroutine for good. It has failed before
// anyone who waits for what was parked goes on and asks why.
func (g *generation) park(reason error) {
	g.fail(reason)
	g.markParked()
	select {}
}

func (g *generation) markParked() { g.parkOnce.Do(func() { close(g.parked) }) }

// discard ends all use of a failed generation: snapshots of it end with an error, and its
// files are closed under it. It waits for a read that is under way.
func (g *generation) discard() {
	g.discarded.Store(true)
	g.fail(errGivenUp)
	g.markParked()
	g.reading.Lock()
	defer g.reading.Unlock()
	g.files.closeAll()
}

func (g *generation) step(f func() bool) (ok bool, err error) {
	g.reading.RLock()
	defer g.reading.RUnlock()
	if g.discarded.Load() {
		return false, g.failure()
	}
	return f(), nil
}
