package storebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/slab"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// StoreOptions says what [Store] measures.
type StoreOptions struct {
	// Dir is where the temporary files are made and removed again.
	Dir string
	// PayloadBytes is the size of a record, TotalBytes what each round reads and writes.
	// Default 2 MiB and 1 GiB: what a round costs once must not decide what a long run reaches.
	PayloadBytes int
	TotalBytes   int64
	// Rounds of raw and store measurements alternate; the median ratio counts. Default 5.
	Rounds int
	// Progress, if not nil, is called with what is measured next.
	Progress func(step string)
}

// StoreResult is what [Store] measured. Rates are medians over the rounds, ratios the
// medians of each round's ratio.
type StoreResult struct {
	PayloadBytes int   `json:"payload_bytes"`
	TotalBytes   int64 `json:"total_bytes"`
	DirectIO     bool  `json:"direct_io"`
	// RawReadShape and RawWriteShape are the best request size and depth found.
	RawReadShape  string `json:"raw_read_shape"`
	RawWriteShape string `json:"raw_write_shape"`

	RawReadBytesPerS float64 `json:"raw_read_bytes_per_s"`
	ReadBytesPerS    float64 `json:"read_bytes_per_s"`
	ReadRatio        float64 `json:"read_ratio"`
	ReadCPUSPerGiB   float64 `json:"read_cpu_s_per_gib"`
	ReadP50Seconds   float64 `json:"read_p50_s"`
	ReadP99Seconds   float64 `json:"read_p99_s"`

	RawWriteBytesPerS float64 `json:"raw_write_bytes_per_s"`
	WriteBytesPerS    float64 `json:"write_bytes_per_s"`
	WriteRatio        float64 `json:"write_ratio"`
	WriteCPUSPerGiB   float64 `json:"write_cpu_s_per_gib"`
	WriteP50Seconds   float64 `json:"write_p50_s"`
	WriteP99Seconds   float64 `json:"write_p99_s"`

	// Churn is writing at the cap, where every write evicts.
	ChurnWriteBytesPerS float64 `json:"churn_write_bytes_per_s"`
	ChurnWriteRatio     float64 `json:"churn_write_ratio"`
	IdleReadP99Seconds  float64 `json:"idle_read_p99_s"`
	ChurnReadP99Seconds float64 `json:"churn_read_p99_s"`
	ChurnReadP99Ratio   float64 `json:"churn_read_p99_ratio"`
}

const (
	defaultPayload = 2 << 20
	defaultTotal   = 1 << 30
	defaultRounds  = 5
	// readStreams callers with readWindow records each keep the disk busy without gaps.
	readStreams = 2
	readWindow  = 8
	// slabRecords are in flight at most; the write budget has room for more of 2 MiB.
	slabRecords = 24
	gib         = 1 << 30
	// churnParts of TotalBytes is the size of the store that is written over and over.
	churnParts = 4
	// storeHeadroom is what the store needs beside payloads.
	storeHeadroom = 64 << 20
)

// Store measures raw device reads and writes and the store's verified ones, alternating,
// in files of one directory.
func Store(ctx context.Context, o StoreOptions) (StoreResult, error) {
	o.PayloadBytes = cmp.Or(o.PayloadBytes, defaultPayload)
	o.TotalBytes = cmp.Or(o.TotalBytes, defaultTotal)
	o.Rounds = cmp.Or(o.Rounds, defaultRounds)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.PayloadBytes < 4096 || o.PayloadBytes > store.MaxPayloadBytes || o.TotalBytes < 16*int64(o.PayloadBytes) {
		return StoreResult{}, fmt.Errorf("bench store: %d bytes in payloads of %d: at least 16 of 4096 bytes", o.TotalBytes, o.PayloadBytes)
	}
	dir, err := os.MkdirTemp(o.Dir, "kvconn-bench-store-")
	if err != nil {
		return StoreResult{}, fmt.Errorf("make a directory for temporary files: %w", err)
	}
	b := &storeBench{o: o, dir: dir, res: StoreResult{PayloadBytes: o.PayloadBytes, TotalBytes: o.TotalBytes}}
	err = b.run(ctx)
	return b.res, errors.Join(err, os.RemoveAll(dir))
}

type storeBench struct {
	o    StoreOptions
	dir  string
	res  StoreResult
	slab *slab.Slab
	s    *disk.Store
	ns   connector.NamespaceDigest
	next int // number of the next record to write
}

func (b *storeBench) slabBytes() int64 {
	return slabRecords * int64(store.PayloadBufferSize(b.o.PayloadBytes))
}

func (b *storeBench) records() int { return int(b.o.TotalBytes / int64(b.o.PayloadBytes)) }

func (b *storeBench) run(ctx context.Context) (err error) {
	if b.slab, err = slab.New(slabRecords, b.o.PayloadBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.slab.Close()) }()
	b.fillSlab()
	device, err := newRaw(filepath.Join(b.dir, "raw"), b.o.TotalBytes, b.slabBytes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.close()) }()
	if err := b.open(ctx, "store", b.o.TotalBytes*int64(b.o.Rounds+1)+storeHeadroom); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.s.Close()) }()
	b.res.DirectIO = b.s.Stats().DirectIO
	for _, step := range []func(context.Context, *raw) error{b.measureWrites, b.measureReads, b.measureChurn} {
		if err := step(ctx, device); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// fillSlab makes payloads that no device compresses.
func (b *storeBench) fillSlab() {
	var all [][]byte
	g := rand.NewChaCha8([32]byte{1})
	for range cap(b.slab.C()) {
		buf := <-b.slab.C()
		_, _ = g.Read(buf)
		all = append(all, buf)
	}
	for _, buf := range all {
		b.slab.Put(buf)
	}
}

func (b *storeBench) open(ctx context.Context, name string, maxBytes int64) error {
	s, err := disk.Open(ctx, disk.Options{Dir: filepath.Join(b.dir, name), MaxBytes: maxBytes, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	b.s = s
	b.ns, err = s.OpenNamespace(benchManifest("store"))
	return err
}

func (b *storeBench) id(n int) store.RecordID {
	return store.RecordID{Namespace: b.ns, Key: Key(n, 0)}
}

// write writes n new records and makes them durable. It returns the latency of each.
func (b *storeBench) write(ctx context.Context, n int) ([]float64, error) {
	var mu sync.Mutex
	var errs []error
	times := make([]float64, 0, n)
	var wg sync.WaitGroup
	for range n {
		buf := <-b.slab.C()
		began := time.Now()
		op := &store.WriteOp{Record: store.Record{ID: b.id(b.next)}, Payload: buf}
		b.next++
		wg.Add(1)
		accepted, err := b.s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
			took := time.Since(began).Seconds()
			b.slab.Put(op.Payload)
			mu.Lock()
			times = append(times, took)
			errs = append(errs, op.Err)
			mu.Unlock()
			wg.Done()
		})
		if accepted == 0 {
			b.slab.Put(buf)
			wg.Done()
			errs = append(errs, err)
			break
		}
	}
	wg.Wait()
	return times, errors.Join(errors.Join(errs...), b.s.Sync(ctx))
}

// read reads records first to first+n in random order. It returns the latency of each
// from the call of Read that asked for it.
func (b *storeBench) read(ctx context.Context, first, n int) ([]float64, error) {
	order := rand.New(rand.NewPCG(uint64(n), 7)).Perm(n)
	var mu sync.Mutex
	var errs []error
	times := make([]float64, 0, n)
	var wg sync.WaitGroup
	for stream := range readStreams {
		mine := order[stream*n/readStreams : (stream+1)*n/readStreams]
		wg.Go(func() {
			for window := range slices.Chunk(mine, readWindow) {
				ops := make([]*store.ReadOp, len(window))
				for i, k := range window {
					ops[i] = &store.ReadOp{Record: store.Record{ID: b.id(first + k)}, Payload: <-b.slab.C()}
				}
				began := time.Now()
				b.s.Read(ctx, ops, func(op *store.ReadOp) {
					took := time.Since(began).Seconds()
					b.slab.Put(op.Payload)
					mu.Lock()
					times = append(times, took)
					if op.Err != nil {
						errs = append(errs, op.Err)
					}
					mu.Unlock()
				})
			}
		})
	}
	wg.Wait()
	return times, errors.Join(errs...)
}

// measureWrites alternates raw writes to a new file and the store's to new segments.
func (b *storeBench) measureWrites(ctx context.Context, device *raw) error {
	b.o.Progress("writing records")
	shape, err := device.bestShape(true)
	if err != nil {
		return err
	}
	b.res.RawWriteShape = shape.String()
	part := b.records()
	var rawRates, rates, ratios, cpu, times []float64
	for round := range b.o.Rounds {
		fresh, err := newRaw(filepath.Join(b.dir, fmt.Sprint("raw", round)), int64(part)*int64(b.o.PayloadBytes), b.slabBytes())
		if err != nil {
			return err
		}
		r, err := fresh.write(shape)
		if err = errors.Join(err, fresh.close()); err != nil {
			return err
		}
		m := startMeter()
		t, err := b.write(ctx, part)
		if err != nil {
			return err
		}
		bytes := int64(part) * int64(b.o.PayloadBytes)
		rate, c := m.stop(bytes)
		rawRates, rates, ratios = append(rawRates, r), append(rates, rate), append(ratios, rate/r)
		cpu, times = append(cpu, c), append(times, t...)
	}
	b.res.RawWriteBytesPerS, b.res.WriteBytesPerS, b.res.WriteRatio = median(rawRates), median(rates), median(ratios)
	b.res.WriteCPUSPerGiB = median(cpu)
	b.res.WriteP50Seconds, b.res.WriteP99Seconds = percentile(times, 50), percentile(times, 99)
	return nil
}

func (b *storeBench) measureReads(ctx context.Context, device *raw) error {
	b.o.Progress("reading them")
	shape, err := device.bestShape(false)
	if err != nil {
		return err
	}
	b.res.RawReadShape = shape.String()
	n := b.records()
	if _, err := b.read(ctx, 0, n); err != nil { // warm up
		return err
	}
	var rawRates, rates, ratios, cpu, times []float64
	for range b.o.Rounds {
		r, err := device.read(shape)
		if err != nil {
			return err
		}
		m := startMeter()
		t, err := b.read(ctx, 0, n)
		if err != nil {
			return err
		}
		rate, c := m.stop(int64(n) * int64(b.o.PayloadBytes))
		rawRates, rates, ratios = append(rawRates, r), append(rates, rate), append(ratios, rate/r)
		cpu, times = append(cpu, c), append(times, t...)
	}
	b.res.RawReadBytesPerS, b.res.ReadBytesPerS, b.res.ReadRatio = median(rawRates), median(rates), median(ratios)
	b.res.ReadCPUSPerGiB = median(cpu)
	b.res.ReadP50Seconds, b.res.ReadP99Seconds = percentile(times, 50), percentile(times, 99)
	return nil
}

// measureChurn fills a store to its cap and goes on writing, while one reader reads
// single records now and then.
func (b *storeBench) measureChurn(ctx context.Context, device *raw) error {
	b.o.Progress("writing to a full store")
	if err := b.s.Close(); err != nil {
		return err
	}
	if err := b.open(ctx, "churn", churnParts*b.o.TotalBytes+storeHeadroom); err != nil {
		return err
	}
	for b.s.Stats().Evicted == 0 {
		if _, err := b.write(ctx, readWindow); err != nil {
			return err
		}
	}
	kept := []int{b.next - 1, b.next - 2, b.next - 3, b.next - 4}
	idle, err := b.readSingles(ctx, kept)
	if err != nil {
		return err
	}
	shape, err := device.bestShape(true)
	if err != nil {
		return err
	}
	part := b.records()
	var rates, ratios []float64
	for range b.o.Rounds {
		r, err := device.write(shape)
		if err != nil {
			return err
		}
		m := startMeter()
		if _, err := b.write(ctx, part); err != nil {
			return err
		}
		rate, _ := m.stop(int64(part) * int64(b.o.PayloadBytes))
		rates, ratios = append(rates, rate), append(ratios, rate/r)
	}
	b.res.ChurnWriteBytesPerS, b.res.ChurnWriteRatio = median(rates), median(ratios)
	kept = []int{b.next - 1, b.next - 2, b.next - 3, b.next - 4}
	stop := make(chan struct{})
	var churnErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		for churnErr == nil {
			select {
			case <-stop:
				return
			default:
				_, churnErr = b.write(ctx, readWindow*2)
			}
		}
	})
	churning, err := b.readSingles(ctx, kept)
	close(stop)
	wg.Wait()
	b.res.IdleReadP99Seconds, b.res.ChurnReadP99Seconds = percentile(idle, 99), percentile(churning, 99)
	b.res.ChurnReadP99Ratio = b.res.ChurnReadP99Seconds / b.res.IdleReadP99Seconds
	return errors.Join(err, churnErr)
}

// readSingles reads pinned records one at a time and returns the latencies.
func (b *storeBench) readSingles(ctx context.Context, which []int) ([]float64, error) {
	const reads = 400
	var times []float64
	var leases []store.LeaseID
	defer func() {
		for _, id := range leases {
			b.s.Release(id)
		}
	}()
	for _, k := range which {
		n, lease := b.s.Lookup(b.ns, []connector.Shard{0}, []connector.Key{b.id(k).Key}, time.Minute)
		if n != 1 {
			return nil, fmt.Errorf("bench store: record %d is gone", k)
		}
		leases = append(leases, lease)
	}
	buf := store.AlignedBuffer(b.o.PayloadBytes)
	for i := range reads {
		op := &store.ReadOp{Record: store.Record{ID: b.id(which[i%len(which)])}, Payload: buf}
		began := time.Now()
		b.s.Read(ctx, []*store.ReadOp{op}, func(*store.ReadOp) {})
		times = append(times, time.Since(began).Seconds())
		if op.Err != nil {
			return nil, op.Err
		}
	}
	return times, nil
}
