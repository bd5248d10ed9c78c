// Package journal is the durable side of the store's index, in Pebble: which record is in
// which slot, the segments and the namespaces. It is written in batches, made durable by
// barriers and read when a store opens.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrFailed says that Pebble reported an error after which nothing can be written: the
// disk failed or is full.
var ErrFailed = errors.New("journal failed")

// Options of a journal.
type Options struct {
	Dir           string
	FS            vfs.FS
	CacheBytes    int64
	MemTableBytes int64
	ReadOnly      bool
	Logger        *slog.Logger
}

// Journal is an open journal. Batches are committed by one goroutine at a time; the other
// methods may be called concurrently.
type Journal struct {
	db     *pebble.DB
	failed chan struct{}
	once   sync.Once
	reason atomic.Pointer[string]
	log    *slog.Logger
}

// Open opens or makes a journal.
func Open(o Options) (*Journal, error) {
	j := &Journal{failed: make(chan struct{}), log: o.Logger}
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	po := &pebble.Options{
		Cache: cache,
		FS:    failFS{o.FS, j},
		// The default is the oldest format that Pebble still reads.
		FormatMajorVersion: pebble.FormatValueSeparation,
		MemTableSize:       uint64(o.MemTableBytes),
		// A flush that falls behind must not stop writes at once.
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		MaxOpenFiles:                256,
		ReadOnly:                    o.ReadOnly,
		Logger:                      (*logger)(j),
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { j.log.Error("journal: background error", "err", err) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				j.log.Error("journal: corruption", "path", info.Path, "details", info.Details)
			},
			WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
				j.log.Warn("journal: writes stalled", "reason", info.Reason)
			},
		},
	}
	// Reads must not wait for a lock that a failed write may hold.
	po.Experimental.ReadSamplingMultiplier = -1
	for i := range po.Levels {
		po.Levels[i].BlockSize = 4 << 10
		po.Levels[i].IndexBlockSize = 256 << 10
	}
	opened := make(chan *pebble.DB, 1)
	err := j.guard(func() (err error) {
		defer panicAsError(&err)
		db, err := pebble.Open(o.Dir, po)
		opened <- db
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", o.Dir, err)
	}
	j.db = <-opened
	return j, nil
}

// memTables is how many memtables, and so logs, there may be at one time.
const memTables = 4

// MinMemTableBytes and MaxMemTableBytes bound a memtable. Larger ones make the replay
// after a crash longer, smaller ones compactions more frequent.
const (
	MinMemTableBytes = 256 << 10
	MaxMemTableBytes = 16 << 20
)

// RecordBytes is what one record may occupy: about 125 bytes live, tombstones, and twice
// that in a compaction.
const RecordBytes = 480

// ReservedBytes is what a journal with memtables of memTableBytes and room for records
// may occupy at worst: its logs, and tables while they are compacted.
func ReservedBytes(memTableBytes, records int64) int64 {
	const (
		logs  = memTables + 2 // one being recycled, one being made
		fixed = 1 << 20       // manifest, options, directories
	)
	return logs*memTableBytes*5/4 + fixed + records*RecordBytes
}

// Barrier makes every batch that was committed before durable.
func (j *Journal) Barrier() error {
	return j.call("sync journal", func() error { return j.db.LogData(nil, pebble.Sync) })
}

// Flush writes out the memtables, so that the next open has no log to replay.
func (j *Journal) Flush() error { return j.call("flush journal", j.db.Flush) }

// Close closes the journal. A failed one is abandoned.
func (j *Journal) Close() error { return j.call("close journal", j.db.Close) }

// Failed is closed when the journal has failed.
func (j *Journal) Failed() <-chan struct{} { return j.failed }

// call runs a function of Pebble.
func (j *Journal) call(what string, f func() error) error {
	err := j.failure()
	if err == nil {
		err = j.guard(f)
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
func (j *Journal) guard(f func() error) error {
	result := make(chan error, 1)
	go func() { result <- unlessClosed(f) }()
	select {
	case err := <-result:
		return err
	case <-j.failed:
		return j.failure()
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

func (j *Journal) failure() error {
	select {
	case <-j.failed:
		return fmt.Errorf("%w: %s", ErrFailed, *j.reason.Load())
	default:
		return nil
	}
}

// logger passes on what Pebble logs.
type logger Journal

// Infof implements pebble.Logger. Pebble tells of every flush and compaction here.
func (l *logger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l *logger) Errorf(format string, args ...any) {
	l.log.Error("journal: " + fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. The process goes on without a journal: lookups and
// reads need none, and a cache must never take its engine down. Pebble expects not to come
// back from here, and the locks that it holds cannot be told: the goroutine stays.
func (l *logger) Fatalf(format string, args ...any) {
	(*Journal)(l).fail(fmt.Sprintf(format, args...))
	select {}
}

// fail marks the journal as failed.
func (j *Journal) fail(reason string) {
	j.once.Do(func() {
		j.reason.Store(&reason)
		close(j.failed)
		j.log.Error("journal: failed, nothing is saved from now on; loads go on", "reason", reason,
			"remedy", "free space in the file system of the store or repair the disk, then restart the daemon")
	})
}
