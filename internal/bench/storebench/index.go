package storebench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// IndexOptions says what [Index] measures.
type IndexOptions struct {
	// Dir is where the temporary store is made and removed again.
	Dir string
	// Records is the number of records, Chain the length of the chain looked up. Default
	// 5 million and 8,192.
	Records int
	Chain   int
	// TableOnly leaves the store out: no journal, no opening. It needs 60 bytes of memory a
	// record and no disk.
	TableOnly bool
	// Progress, if not nil, is called now and then with what is being done, and with how many
	// records of how many that is done.
	Progress func(step string, done, total int)
}

func (o *IndexOptions) progress(step string, done, total int) {
	if o.Progress != nil {
		o.Progress(step, done, total)
	}
}

// IndexResult is what [Index] measured.
type IndexResult struct {
	Records int `json:"records"`
	// Table is what the table showed while it grew, and at its full size.
	Table TableResult `json:"table"`
	// LookupSeconds is the median time to look up a chain of Chain keys that is all there,
	// LookupP99Seconds the 99th percentile.
	Chain            int     `json:"chain"`
	LookupSeconds    float64 `json:"lookup_s"`
	LookupP99Seconds float64 `json:"lookup_p99_s"`
	// BytesPerRecord is the index's memory for each record.
	BytesPerRecord float64 `json:"bytes_per_record"`
	// JournalBytesPerRecord is what the journal occupies on disk.
	JournalBytesPerRecord float64 `json:"journal_bytes_per_record"`
	// OpenCleanSeconds is the time to open after a clean stop, OpenKilledSeconds that from
	// the files that a kill leaves.
	OpenCleanSeconds  float64 `json:"open_clean_s"`
	OpenKilledSeconds float64 `json:"open_killed_s"`
	BuildSeconds      float64 `json:"build_s"`
}

const (
	indexPayload = 4 << 10
	defaultChain = 8192
	lookupRounds = 200
	writeBatch   = 2048
)

// Index builds a table of records in memory and measures how it grows and what a choice of
// victims costs. Then it builds an index of as many records without payloads (segment files are
// sparse and payloads are not written) through the store's own write path, and measures look-ups
// and the opening of the store.
func Index(ctx context.Context, o IndexOptions) (IndexResult, error) {
	if o.Records == 0 {
		o.Records = 5_000_000
	}
	if o.Chain == 0 {
		o.Chain = defaultChain
	}
	if o.Records < o.Chain || o.Chain < 1 {
		return IndexResult{}, fmt.Errorf("bench index: %d records: at least one chain of %d", o.Records, o.Chain)
	}
	table, err := measureTable(ctx, o)
	if err != nil || o.TableOnly {
		return IndexResult{Records: o.Records, Chain: o.Chain, Table: table}, err
	}
	dir, err := os.MkdirTemp(o.Dir, "kvconn-bench-index-")
	if err != nil {
		return IndexResult{}, fmt.Errorf("make a directory for temporary files: %w", err)
	}
	b := &indexBench{o: o, dir: filepath.Join(dir, "live"), killed: filepath.Join(dir, "killed")}
	b.res.Records, b.res.Chain, b.res.Table = o.Records, o.Chain, table
	err = b.run(ctx)
	return b.res, errors.Join(err, os.RemoveAll(dir))
}

type indexBench struct {
	o           IndexOptions
	dir, killed string
	ns          connector.NamespaceDigest
	res         IndexResult
}

func (b *indexBench) options(dir string) disk.Options { return sparseOptions(dir, b.o.Records) }

func sparseOptions(dir string, records int) disk.Options {
	slot := int64(store.PayloadBufferSize(indexPayload) + fsio.Align)
	return disk.Options{
		Dir: dir, MaxBytes: 1<<30 + int64(records)*(slot+1024), Logger: slog.New(slog.DiscardHandler),
	}.WithFS(sparseFS{}, vfs.Default)
}

// OpenSparse opens a store for measurements of its index: it takes records of at most
// 4 KiB like any other, but their payloads are not written, so that millions fit on a
// small disk.
func OpenSparse(ctx context.Context, dir string, records int) (*disk.Store, error) {
	return disk.Open(ctx, sparseOptions(dir, records))
}

func (b *indexBench) run(ctx context.Context) error {
	s, err := disk.Open(ctx, b.options(b.dir))
	if err != nil {
		return err
	}
	err = b.build(ctx, s)
	if err == nil {
		b.measureLookup(s)
		st := s.Stats()
		b.res.BytesPerRecord = float64(st.IndexBytes) / float64(st.Records)
		err = b.cloneAsKilled(ctx, s)
	}
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	n, err := fsio.OS{}.PhysicalBytes(filepath.Join(b.dir, "index"))
	if err != nil {
		return err
	}
	b.res.JournalBytesPerRecord = float64(n) / float64(b.o.Records)
	if b.res.OpenCleanSeconds, err = b.reopen(ctx, b.dir, disk.RecoveredSnapshot); err != nil {
		return err
	}
	b.res.OpenKilledSeconds, err = b.reopen(ctx, b.killed, disk.RecoveredJournal)
	return err
}

// Key is the key of a block of a chain, spread like hashes.
func Key(chain, block int) connector.Key {
	var k connector.Key
	x := uint64(chain)<<32 | uint64(block) + 1
	for i := range 2 {
		x ^= x >> 30
		x *= 0xBF58476D1CE4E5B9
		x ^= x >> 27
		x *= 0x94D049BB133111EB
		x ^= x >> 31
		binary.LittleEndian.PutUint64(k[8*i:], x)
	}
	return k
}

func (b *indexBench) build(ctx context.Context, s *disk.Store) error {
	began := time.Now()
	var err error
	if b.ns, err = s.OpenNamespace(benchManifest("index")); err != nil {
		return err
	}
	payload := store.AlignedBuffer(indexPayload)
	ops := make([]*store.WriteOp, writeBatch)
	for i := range ops {
		ops[i] = new(store.WriteOp)
	}
	done := make(chan error, writeBatch)
	report := func(op *store.WriteOp) { done <- op.Err }
	for at := 0; at < b.o.Records && ctx.Err() == nil; at += len(ops) {
		ops = ops[:min(len(ops), b.o.Records-at)]
		for i, op := range ops {
			chain, block := (at+i)/b.o.Chain, (at+i)%b.o.Chain
			op.ID = store.RecordID{Namespace: b.ns, Key: Key(chain, block)}
			op.Parent = connector.Key{}
			if block > 0 {
				op.Parent = Key(chain, block-1)
			}
			op.Payload = payload
		}
		if n, err := s.Write(ops, report); err != nil {
			return fmt.Errorf("write %d of %d: %w", n, len(ops), err)
		}
		for range ops {
			if e := <-done; e != nil {
				err = e
			}
		}
		if err != nil {
			return err
		}
		b.o.progress("building the index", at+len(ops), b.o.Records)
	}
	b.res.BuildSeconds = time.Since(began).Seconds()
	return ctx.Err()
}

func (b *indexBench) measureLookup(s *disk.Store) {
	chains := b.o.Records / b.o.Chain
	times := make([]float64, 0, lookupRounds)
	keys := make([]connector.Key, b.o.Chain)
	runtime.GC()
	for round := range lookupRounds {
		chain := int(uint64(round) * 0x9E3779B97F4A7C15 >> 33 % uint64(chains))
		for i := range keys {
			keys[i] = Key(chain, i)
		}
		began := time.Now()
		n, lease := s.Lookup(b.ns, []connector.Shard{0}, keys, time.Second)
		times = append(times, time.Since(began).Seconds())
		s.Release(lease)
		if n != len(keys) {
			panic(fmt.Sprintf("storebench: chain %d of %d blocks: found %d", chain, len(keys), n))
		}
	}
	slices.Sort(times)
	b.res.LookupSeconds, b.res.LookupP99Seconds = times[len(times)/2], times[len(times)*99/100]
}

// cloneAsKilled copies the files of a store after a barrier: what a kill at that moment
// would leave.
func (b *indexBench) cloneAsKilled(ctx context.Context, s *disk.Store) error {
	if err := s.Sync(ctx); err != nil {
		return err
	}
	const attempts = 20 // a compaction may take away a file under the copy
	var err error
	for range attempts {
		if err = errors.Join(os.RemoveAll(b.killed), cloneTree(b.dir, b.killed)); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// cloneTree links what never changes once written (tables) or is not looked at (payloads)
// and copies the rest.
func cloneTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(dst, 0o700)
		case strings.HasSuffix(path, ".sst") || strings.HasSuffix(path, ".kv"):
			return os.Link(path, dst)
		default:
			return copyFile(path, dst)
		}
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, in.Close(), out.Close())
}

func (b *indexBench) reopen(ctx context.Context, dir string, want disk.Recovery) (float64, error) {
	runtime.GC()
	began := time.Now()
	s, err := disk.Open(ctx, b.options(dir))
	if err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	st := s.Stats()
	if st.Recovered != want || st.Records != int64(b.o.Records) {
		err = fmt.Errorf("bench index: recovered %d of %d records from %s, want %s: %v",
			st.Records, b.o.Records, st.Recovered, want, st.Warnings)
	}
	return took, errors.Join(err, s.Close())
}

func benchManifest(model string) *connector.Manifest {
	return &connector.Manifest{
		Engine: "bench", Model: model, KVDType: "bfloat16", BlockSize: 16, Groups: []connector.Group{{Layers: 1, KVHeads: 1, HeadSize: 128, Layout: "bench"}}, TensorParallel: 1, PipelineParallel: 1,
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// sparseFS is the operating system's, except that segments are not preallocated and
// payloads not written: an index of millions of records needs no terabyte.
type sparseFS struct{ fsio.OS }

// OpenFile implements [fsio.FS].
func (s sparseFS) OpenFile(path string, create, direct bool) (fsio.File, error) {
	f, err := s.OS.OpenFile(path, create, direct)
	if err != nil || !strings.HasSuffix(path, ".kv") {
		return f, err
	}
	return sparseFile{File: f, path: path}, nil
}

type sparseFile struct {
	fsio.File
	path string
}

// Allocate implements [fsio.File].
func (f sparseFile) Allocate(size int64) error { return os.Truncate(f.path, size) }

// WriteVec implements [fsio.File]: only the segment's header is kept.
func (f sparseFile) WriteVec(a, b []byte, offset int64) error {
	if offset > 0 {
		return nil
	}
	return f.File.WriteVec(a, b, offset)
}
