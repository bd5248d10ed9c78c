package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
)

// Draft is a new generation of a journal that is being written beside the present one, from
// what the store knows. Nothing of it counts before [Draft.Finish] has ended. It is for one
// goroutine. Until Finish a failing disk is an error like any other: no database is open
// yet, so that it can be tried again as often as needed.
type Draft struct {
	opts   Options
	number uint64
	dir    string
	of     *Journal // whose failures this one's count among, or nil

	small  []entry  // all but records
	tables []string // finished tables of records
	table  *sstable.Writer
	path   string // of table
	bytes  int
	key    []byte
	value  []byte
	gen    *generation // once its database is open
	tried  bool        // opening the database was begun
}

type entry struct{ key, value []byte }

const (
	// tableBytes is the size of a draft's tables.
	tableBytes = 32 << 20
	// spareFiles and spareBytes are what must be there before a database is opened: it does
	// not take it well if they are missing.
	spareFiles = 32
	spareBytes = 2 << 20
)

// Begin begins the first journal of a store, or a new generation of one that cannot be
// opened.
func Begin(o Options) (*Draft, error) {
	numbers, _, err := generations(o.FS, o.Dir)
	number := uint64(1)
	for _, n := range numbers {
		number = max(number, n+1)
	}
	d := &Draft{opts: o, number: number, dir: generationDir(o.FS, o.Dir, number)}
	if err == nil {
		err = o.FS.MkdirAll(d.dir, 0o755)
	}
	if err == nil {
		err = syncDir(o.FS, o.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("begin journal %s: %w", d.dir, err)
	}
	return d, nil
}

// Begin begins a new generation beside one that failed. Its memtables are smaller the more have
// failed: see [Journal.Failures].
func (j *Journal) Begin() (*Draft, error) {
	o := j.opts
	o.MemTableBytes = max(o.MemTableBytes>>min(j.Failures(), 10), MinMemTableBytes)
	d, err := Begin(o)
	if err != nil {
		return nil, err
	}
	d.of = j
	return d, nil
}

// Failures is how many generations have failed since the journal was opened. Each keeps some
// goroutines and a few hundred kilobytes for good, which the caller bounds by its pauses.
func (j *Journal) Failures() int { return int(j.failures.Load()) }

// PutRecord adds a record. Records must come in the order of their location.
func (d *Draft) PutRecord(r *Record) error {
	if d.table == nil {
		if err := d.startTable(); err != nil {
			return err
		}
	}
	d.key = recordKey(d.key, r.Location)
	d.value = r.appendValue(d.value[:0])
	if err := d.table.Set(d.key, d.value); err != nil {
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	if d.bytes += len(d.key) + len(d.value); d.bytes >= tableBytes {
		return d.endTable()
	}
	return nil
}

func (d *Draft) startTable() error {
	d.path = d.opts.FS.PathJoin(d.dir, fmt.Sprintf("table-%d.draft", len(d.tables)))
	f, err := d.opts.FS.Create(d.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("make %s: %w", d.path, err)
	}
	po := newGeneration(d.opts, d.number).pebbleOptions(nil)
	po.EnsureDefaults()
	d.table = sstable.NewWriter(objstorageprovider.NewFileWritable(f), po.MakeWriterOptions(0, formatMajorVersion.MaxTableFormat()))
	d.bytes = 0
	return nil
}

func (d *Draft) endTable() error {
	t := d.table
	d.table = nil
	if err := t.Close(); err != nil {
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	d.tables = append(d.tables, d.path)
	return nil
}

// PutSegment adds a segment.
func (d *Draft) PutSegment(s Segment) { d.put(segmentKey(s.ID), s.value()) }

// PutNamespace adds a namespace.
func (d *Draft) PutNamespace(n Namespace) { d.put(namespaceKey(n.ID), n.Digest[:]) }

// PutSize adds the payload size of a namespace's shard.
func (d *Draft) PutSize(namespace uint16, shard connector.Shard, bytes uint32) {
	d.put(sizeKey(namespace, shard), binary.LittleEndian.AppendUint32(nil, bytes))
}

// PutMeta adds a small value under a name.
func (d *Draft) PutMeta(name string, value []byte) { d.put(append([]byte{prefixMeta}, name...), value) }

func (d *Draft) put(key, value []byte) {
	d.small = append(d.small, entry{key, append([]byte{}, value...)})
}

// Finish opens the new generation and makes it durable and complete: the next [Open] finds
// it and not the one before.
func (d *Draft) Finish() error {
	if d.table != nil {
		if err := d.endTable(); err != nil {
			return err
		}
	}
	if err := d.probe(); err != nil {
		return err
	}
	err := d.open()
	if err != nil && d.of != nil {
		d.of.failures.Add(1)
	}
	return err
}

func (d *Draft) open() error {
	d.tried = true
	g, err := openGeneration(d.opts, d.number)
	if err != nil {
		return err
	}
	d.gen = g
	for _, path := range d.tables {
		if err := g.call("take in "+path, func() error { return g.db.Ingest(context.Background(), []string{path}) }); err != nil {
			return err
		}
	}
	err = g.call("write to journal", func() error {
		for _, e := range d.small {
			if err := g.db.Set(e.key, e.value, pebble.NoSync); err != nil {
				return err
			}
		}
		return g.db.LogData(nil, pebble.Sync)
	})
	if err != nil {
		return err
	}
	return d.complete()
}

// probe makes sure that there are descriptors and space to open a database.
func (d *Draft) probe() error {
	fs := d.opts.FS
	path := fs.PathJoin(d.dir, "probe.draft")
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	_, err = f.Write(make([]byte, spareBytes))
	err = errors.Join(err, f.Sync(), f.Close())
	var dirs []vfs.File
	for range spareFiles {
		dir, openErr := fs.OpenDir(d.dir)
		if openErr != nil {
			err = errors.Join(err, openErr)
			break
		}
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		err = errors.Join(err, dir.Close())
	}
	if err = errors.Join(err, fs.Remove(path)); err != nil {
		return fmt.Errorf("probe %s: %w", d.dir, err)
	}
	return nil
}

// complete makes the mark that the generation counts.
func (d *Draft) complete() error {
	fs := d.opts.FS
	f, err := fs.Create(fs.PathJoin(d.dir, completeFile), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err == nil {
		err = syncDir(fs, d.dir)
	}
	if err != nil {
		return fmt.Errorf("complete journal %s: %w", d.dir, err)
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Abort gives the draft up and removes what can be removed of it.
func (d *Draft) Abort() {
	if d.table != nil {
		_ = d.table.Close()
		d.table = nil
	}
	fs := d.opts.FS
	// First the mark: without it nothing else counts.
	_ = fs.Remove(fs.PathJoin(d.dir, completeFile))
	_ = syncDir(fs, d.dir)
	if d.gen != nil {
		d.gen.discard()
	}
	_ = fs.RemoveAll(d.dir)
	if d.tried {
		// Its lock may still be held by this process: the next draft needs another name.
		_ = fs.MkdirAll(d.dir, 0o755)
	}
}

// Journal opens a finished draft as the journal of its directory, and removes what is left
// of other generations: for a store that opens.
func (d *Draft) Journal() *Journal {
	j := &Journal{opts: d.opts}
	j.gen.Store(d.gen)
	removeLeftovers(d.opts, d.number)
	return j
}

// Replace puts a finished draft in the place of the present generation, which is given up
// and removed, with what is left of earlier ones. Batches are not to be committed meanwhile.
func (j *Journal) Replace(d *Draft) {
	old := j.gen.Swap(d.gen)
	j.failures.Add(1)
	// A read of the old one that hangs must not hold up the new one.
	go func() {
		old.discard()
		if err := removeGenerations(j.opts, func(n uint64) bool { return n < d.number }); err != nil {
			j.opts.Logger.Warn("journal: cannot remove the one that failed", "err", err,
				"remedy", "none: it is tried again with the next one, and at the next start")
		}
	}()
}
