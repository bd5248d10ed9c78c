// Package journal is the durable side of the store's index, in Pebble: which record is in
// which slot, the segments and the namespaces. It is written in batches, made durable by
// barriers and read when a store opens. A journal that fails is replaced by a new
// generation of it, written from what the store knows; see [Draft].
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrFailed says that Pebble reported an error after which nothing can be written: the
// disk failed or is full. A new generation of the journal can be written when it works
// again.
var ErrFailed = errors.New("journal failed")

// ErrCorrupt says that a file of the journal does not hold what was written.
var ErrCorrupt = errors.New("journal is corrupt")

// ErrUnreadable says, beside [ErrFailed], that a directory of the journal could not be read: it is
// no failure to write.
var ErrUnreadable = errors.New("directory of the journal cannot be read")

// Options of a journal.
type Options struct {
	Dir           string
	FS            vfs.FS
	CacheBytes    int64
	MemTableBytes int64
	Logger        *slog.Logger
}

// Journal is an open journal. Batches are committed by one goroutine at a time; the other
// methods may be called concurrently.
type Journal struct {
	opts Options
	gen  atomic.Pointer[generation]
	// failures counts the generations that were given up.
	failures atomic.Int64
}

// Open opens the newest generation of the journal in o.Dir, or makes the first, and removes
// what is left of others.
func Open(o Options) (*Journal, error) {
	number, err := locate(o.FS, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", o.Dir, err)
	}
	removeLeftovers(o, number)
	j := &Journal{opts: o}
	g, err := openGeneration(o, number)
	if err != nil {
		return nil, err
	}
	j.gen.Store(g)
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

// RecordBytes is what one record may occupy: liveBytes for its key and value and its part
// of a block, tombstones, twice that in a compaction, and once more in a draft.
const (
	RecordBytes = 5 * liveBytes
	liveBytes   = 125
)

// ReservedBytes is what a journal with memtables of memTableBytes and room for records
// may occupy at worst: its logs, and tables while they are compacted; and, if it fails in
// that state, the new generation beside it.
func ReservedBytes(memTableBytes, records int64) int64 {
	const (
		logs  = memTables + 2 // one being recycled, one being made
		fixed = 2 << 20       // manifests, options, directories, the logs of a draft
	)
	return logs*memTableBytes*5/4 + fixed + records*RecordBytes
}

// Barrier makes every batch that was committed before durable.
func (j *Journal) Barrier() error {
	g := j.gen.Load()
	return g.call("sync journal", func() error { return g.db.LogData(nil, pebble.Sync) })
}

// Flush writes out the memtables, so that the next open has no log to replay.
func (j *Journal) Flush() error {
	g := j.gen.Load()
	return g.call("flush journal", g.db.Flush)
}

// Close closes the journal. A failed one is abandoned.
func (j *Journal) Close() error { return j.gen.Load().close() }

// Failed is closed when the journal's present generation has failed.
func (j *Journal) Failed() <-chan struct{} { return j.gen.Load().failed }

// Generation is the number of the present generation. What was noted in an earlier one need
// not be in it.
func (j *Journal) Generation() uint64 { return j.gen.Load().number + 1 }

// Abandon makes the journal fail: the disk does not answer, and whoever waits for it is to
// wait no longer.
func (j *Journal) Abandon(reason string) {
	g := j.gen.Load()
	g.fail(errors.New(reason))
	g.markParked()
}

// logger passes on what Pebble logs.
type logger generation

// Infof implements pebble.Logger. Pebble tells of every flush and compaction here.
func (l *logger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l *logger) Errorf(format string, args ...any) {
	l.opts.Logger.Error("journal: " + fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. The process goes on without a journal: lookups and
// reads need none, and a cache must never take its engine down. Pebble expects not to come
// back from here, and the locks that it holds cannot be told: the goroutine stays.
func (l *logger) Fatalf(format string, args ...any) {
	(*generation)(l).park(fmt.Errorf(format, args...))
}

// Snapshot is the journal's records at one moment.
type Snapshot struct {
	g *generation
	s *pebble.Snapshot
}

// Snapshot returns the records as they are now. It must be closed. It ends with [ErrFailed]
// when a new generation of the journal has taken the place of a failed one.
func (j *Journal) Snapshot() (*Snapshot, error) {
	taken := make(chan *pebble.Snapshot, 1)
	g := j.gen.Load()
	if err := g.call("take snapshot of journal", func() error { taken <- g.db.NewSnapshot(); return nil }); err != nil {
		return nil, err
	}
	return &Snapshot{g, <-taken}, nil
}

// Records calls f for every record. The record is valid during the call.
func (s *Snapshot) Records(f func(*Record) error) error {
	return records(s.s, 0, 1<<32-1, f, func(error) {}, s.g.step)
}

// Close lets go of the snapshot. There is nothing to let go of in a journal that failed.
func (s *Snapshot) Close() error {
	if s.g.failure() != nil {
		return nil
	}
	return s.g.call("close snapshot of journal", s.s.Close)
}
