package storebench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/index"
)

// TableResult is what the table in memory showed, without a store around it: one goroutine
// added records in the committer's batches while another looked up chains all the time.
type TableResult struct {
	Records int `json:"records"`
	// InsertsPerS is how many records a second were added beside the look-ups.
	InsertsPerS float64 `json:"inserts_per_s"`
	// GrowingLookupP99Seconds and GrowingLookupMaxSeconds are of the look-ups of whole chains
	// that were made meanwhile: the longest holds what the table's growth made it wait.
	GrowingLookups          int     `json:"growing_lookups"`
	GrowingLookupP99Seconds float64 `json:"growing_lookup_p99_s"`
	GrowingLookupMaxSeconds float64 `json:"growing_lookup_max_s"`
	// BatchMaxSeconds is the processor time of the longest batch of insertions, in which the lock
	// was held several times: what a look-up can have waited for, whatever else the machine did.
	BatchMaxSeconds float64 `json:"batch_max_s"`
	// BytesPerRecord is the table's memory at the end, WorstBytesPerRecord the most it was
	// after the first fifth, in the middle of a growth too.
	BytesPerRecord      float64 `json:"bytes_per_record"`
	WorstBytesPerRecord float64 `json:"worst_bytes_per_record"`
	// ChoiceSeconds is the median processor time of one choice of victims when every record was
	// used since it was written, ChoiceMaxSeconds the longest, VictimsPerChoice the mean number of
	// victims.
	ChoiceSeconds    float64 `json:"choice_s"`
	ChoiceMaxSeconds float64 `json:"choice_max_s"`
	VictimsPerChoice float64 `json:"victims_per_choice"`
}

const (
	tableBatch   = 256     // as the committer's
	tableSegment = 1 << 16 // slots
	tableClass   = 1
	tableChoices = 2000
	// lookupStep and lookupSteps are those of the histogram of look-ups.
	lookupStep  = 10 * time.Microsecond
	lookupSteps = 10_000
)

// tableBench measures one table. It keeps no keys: they follow from chain and block.
type tableBench struct {
	o     IndexOptions
	table *index.Table
	built atomic.Int64 // chains that are all there
	res   TableResult

	times  [lookupSteps]int
	failed error
}

// measureTable builds a table of records and measures it.
func measureTable(ctx context.Context, o IndexOptions) (TableResult, error) {
	b := &tableBench{o: o, table: index.New()}
	defer b.table.Close()
	b.res.Records = o.Records
	stop := make(chan struct{})
	var lookups sync.WaitGroup
	lookups.Go(func() { b.lookUp(stop) })
	err := b.build(ctx)
	close(stop)
	lookups.Wait()
	if err == nil {
		err = b.failed
	}
	if err != nil {
		return b.res, err
	}
	b.sumLookups()
	b.choose()
	return b.res, ctx.Err()
}

func (b *tableBench) build(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	batch := make([]index.Insertion, tableBatch)
	var base index.Ref
	for at := 0; at < b.o.Records && ctx.Err() == nil; at += len(batch) {
		if at%tableSegment == 0 {
			var err error
			if base, err = b.table.AddSlots(tableSegment); err != nil {
				return fmt.Errorf("bench index: %w", err)
			}
			b.table.Track(tableClass, index.Range{Base: base, Slots: tableSegment}, b.table.Clock())
		}
		batch = batch[:min(len(batch), b.o.Records-at)]
		for i := range batch {
			chain, block := (at+i)/b.o.Chain, (at+i)%b.o.Chain
			batch[i] = index.Insertion{ID: index.ID{Key: benchKey(chain, block)}, Seq: uint64(at+i) + 1, Bytes: indexPayload,
				Ref: base + index.Ref((at+i)%tableSegment)}
			if block > 0 {
				batch[i].Parent = benchKey(chain, block-1)
			}
		}
		cpu := threadTime()
		b.table.Place(batch)
		b.table.Insert(batch)
		b.res.BatchMaxSeconds = max(b.res.BatchMaxSeconds, (threadTime() - cpu).Seconds())
		b.built.Store(int64((at + len(batch)) / b.o.Chain))
		if n := at + len(batch); n >= b.o.Records/5 && n%tableSegment == 0 {
			b.res.WorstBytesPerRecord = max(b.res.WorstBytesPerRecord, float64(b.table.MemoryBytes())/float64(n))
		}
		if b.o.TableProgress != nil {
			b.o.TableProgress(at + len(batch))
		}
	}
	b.res.InsertsPerS = float64(b.o.Records) / time.Since(began).Seconds()
	b.res.BytesPerRecord = float64(b.table.MemoryBytes()) / float64(b.o.Records)
	b.res.WorstBytesPerRecord = max(b.res.WorstBytesPerRecord, b.res.BytesPerRecord)
	return ctx.Err()
}

// lookUp looks up chains that are all there until stop is closed.
func (b *tableBench) lookUp(stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := rand.New(rand.NewPCG(1, 1))
	keys := make([]connector.Key, b.o.Chain)
	refs := make([]index.Ref, 0, b.o.Chain)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n := b.built.Load()
		if n == 0 {
			runtime.Gosched()
			continue
		}
		chain := int(g.Int64N(n))
		for i := range keys {
			keys[i] = benchKey(chain, i)
		}
		began := time.Now()
		found, pins := b.table.Prefix(0, []connector.Shard{0}, keys, refs[:0])
		took := time.Since(began)
		b.table.Unpin(pins...)
		b.times[min(took/lookupStep, lookupSteps-1)]++
		b.res.GrowingLookupMaxSeconds = max(b.res.GrowingLookupMaxSeconds, took.Seconds())
		if found != len(keys) {
			b.failed = fmt.Errorf("bench index: chain %d of %d blocks: found %d", chain, len(keys), found)
			return
		}
	}
}

func (b *tableBench) sumLookups() {
	for _, n := range b.times {
		b.res.GrowingLookups += n
	}
	seen := 0
	for i, n := range b.times {
		if seen += n; seen*100 >= b.res.GrowingLookups*99 {
			b.res.GrowingLookupP99Seconds = (time.Duration(i+1) * lookupStep).Seconds()
			return
		}
	}
}

// choose uses every chain once more, in another order, so that what the table knows of its
// records' recency is out of date everywhere, and chooses victims.
func (b *tableBench) choose() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	chains := b.o.Records / b.o.Chain
	keys := make([]connector.Key, b.o.Chain)
	refs := make([]index.Ref, 0, b.o.Chain)
	for _, chain := range rand.New(rand.NewPCG(2, 2)).Perm(chains) {
		for i := range keys {
			keys[i] = benchKey(chain, i)
		}
		_, pins := b.table.Prefix(0, []connector.Shard{0}, keys, refs[:0])
		b.table.Unpin(pins...)
	}
	runtime.GC()
	times := make([]float64, 0, tableChoices)
	victims := 0
	var out []index.Removed
	for range tableChoices {
		cpu := threadTime()
		_, ok := b.table.Choose(tableClass)
		times = append(times, (threadTime() - cpu).Seconds())
		if !ok {
			break
		}
		n := b.table.Chosen(tableClass)
		out = b.table.Evict(tableClass, n, out[:0])
		victims += n
	}
	slices.Sort(times)
	b.res.ChoiceSeconds, b.res.ChoiceMaxSeconds = times[len(times)/2], times[len(times)-1]
	b.res.VictimsPerChoice = float64(victims) / float64(len(times))
}

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic("storebench: processor time of a thread: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
