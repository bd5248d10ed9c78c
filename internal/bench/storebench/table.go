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

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// TableResult is what the table in memory showed, without a store around it: one goroutine
// added records in the committer's batches while another looked up chains all the time.
type TableResult struct {
	Records int `json:"records"`
	// InsertsPerS is how many records a second were added beside the look-ups.
	InsertsPerS float64 `json:"inserts_per_s"`
	// BatchSeconds, BatchP99Seconds and BatchMaxSeconds are the median, the 99th percentile and the
	// longest of the processor time that the insertion of a batch of 256 records takes while the
	// table grows: two holds of the lock, and what is done before each. Batches before which the
	// system gave memory (some milliseconds, without the lock) are left out.
	BatchSeconds    float64 `json:"batch_s"`
	BatchP99Seconds float64 `json:"batch_p99_s"`
	BatchMaxSeconds float64 `json:"batch_max_s"`
	// Growing are the look-ups of whole chains that were made while the table was moved into a
	// larger hash table, Filling those that were made while records were added to a table that had
	// room, and Still those of a second table, of up to a million records, to which no one adds,
	// made in turn with the others. What growth costs a look-up is the first less the second; what
	// the third shows is the machine's doing.
	Growing LookupTimes `json:"growing"`
	Filling LookupTimes `json:"filling"`
	Still   LookupTimes `json:"still"`
	// BytesPerRecord is the table's memory at the end, WorstBytesPerRecord the most it was
	// after the first fifth, in the middle of a growth too. ResidentBytesPerRecord is by how much the
	// process's resident memory grew from the beginning to the end.
	BytesPerRecord         float64 `json:"bytes_per_record"`
	WorstBytesPerRecord    float64 `json:"worst_bytes_per_record"`
	ResidentBytesPerRecord float64 `json:"resident_bytes_per_record"`
	// ChoiceSeconds is the median processor time of one choice of victims when every record was
	// used since it was written, ChoiceP99Seconds the 99th percentile and ChoiceMaxSeconds the
	// longest, VictimsPerChoice the mean number of victims. ControlSeconds, ControlP99Seconds and
	// ControlMaxSeconds are of a computation of the same length that touches no memory, made in
	// turn with the choices: what they vary by is the machine's doing.
	ChoiceSeconds     float64 `json:"choice_s"`
	ChoiceP99Seconds  float64 `json:"choice_p99_s"`
	ChoiceMaxSeconds  float64 `json:"choice_max_s"`
	ControlSeconds    float64 `json:"choice_control_s"`
	ControlP99Seconds float64 `json:"choice_control_p99_s"`
	ControlMaxSeconds float64 `json:"choice_control_max_s"`
	VictimsPerChoice  float64 `json:"victims_per_choice"`
}

const (
	tableBatch   = 256     // as the committer's
	tableSegment = 1 << 16 // slots
	tableClass   = 1
	tableChoices = 2000
	// calibrations is how many choices the computation beside them is fitted to.
	calibrations = 40
	// stillRecords are in the table to which no one adds.
	stillRecords = 1 << 20
)

// tableBench measures one table. It keeps no keys: they follow from chain and block.
type tableBench struct {
	o            IndexOptions
	table, still *index.Table
	built        atomic.Int64 // chains that are all there
	res          TableResult
	batches      []float64 // processor seconds of batches while the table grew
}

// measureTable builds a table of records and measures it.
func measureTable(ctx context.Context, o IndexOptions) (TableResult, error) {
	b := &tableBench{o: o, table: index.New(), still: index.New()}
	defer b.table.Close()
	defer b.still.Close()
	b.res.Records = o.Records
	still := max(o.Chain, min(o.Records, stillRecords)/o.Chain*o.Chain)
	if err := b.fill(ctx, b.still, still, func(int, spent, bool) {}); err != nil {
		return b.res, err
	}
	l := newTableLookups(b, still/o.Chain)
	stop := make(chan struct{})
	var lookups sync.WaitGroup
	lookups.Go(func() { l.run(stop) })
	err := b.build(ctx)
	close(stop)
	lookups.Wait()
	if err == nil {
		err = l.failed
	}
	if err != nil {
		return b.res, err
	}
	l.sum(&b.res)
	err = b.useAll(ctx)
	if err == nil {
		b.choose()
	}
	return b.res, err
}

// build fills the table beside the look-ups.
func (b *tableBench) build(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	resident := residentBytes()
	began := time.Now()
	err := b.fill(ctx, b.table, b.o.Records, func(n int, s spent, growing bool) {
		b.built.Store(int64(n / b.o.Chain))
		if growing && s.faults == 0 {
			b.batches = append(b.batches, s.cpu.Seconds())
		}
		if n >= b.o.Records/5 && n%tableSegment == 0 {
			b.res.WorstBytesPerRecord = max(b.res.WorstBytesPerRecord, float64(b.table.MemoryBytes())/float64(n))
		}
		b.o.progress("filling the table", n, b.o.Records)
	})
	if err != nil {
		return err
	}
	n := float64(b.o.Records)
	b.res.InsertsPerS = n / time.Since(began).Seconds()
	b.res.BytesPerRecord = float64(b.table.MemoryBytes()) / n
	b.res.WorstBytesPerRecord = max(b.res.WorstBytesPerRecord, b.res.BytesPerRecord)
	if resident > 0 {
		b.res.ResidentBytesPerRecord = (residentBytes() - resident) / n
	}
	b.res.BatchSeconds, b.res.BatchP99Seconds, b.res.BatchMaxSeconds = quantiles(b.batches)
	return nil
}

// spent is what an insertion took: processor time, and pages that the system gave.
type spent struct {
	cpu    time.Duration
	faults int64
}

// fill adds records to an empty table in batches. After each it calls after with their number, what
// the insertion took, and whether the table grew before it and after it.
func (b *tableBench) fill(ctx context.Context, table *index.Table, records int, after func(n int, s spent, growing bool)) error {
	batch := make([]index.Insertion, tableBatch)
	var base index.Ref
	growing := false
	for at := 0; at < records; at += len(batch) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if at%tableSegment == 0 {
			var err error
			if base, err = table.AddSlots(tableSegment); err != nil {
				return fmt.Errorf("bench index: %w", err)
			}
			table.Track(tableClass, index.Range{Base: base, Slots: tableSegment}, table.Clock())
		}
		batch = batch[:min(len(batch), records-at)]
		for i := range batch {
			chain, block := (at+i)/b.o.Chain, (at+i)%b.o.Chain
			batch[i] = index.Insertion{ID: index.ID{Key: Key(chain, block)}, Seq: uint64(at+i) + 1, Bytes: indexPayload,
				Ref: base + index.Ref((at+i)%tableSegment)}
			if block > 0 {
				batch[i].Parent = Key(chain, block-1)
			}
		}
		table.Place(batch)
		before := growing
		faults, cpu := threadFaults(), threadTime()
		table.Insert(batch)
		s := spent{cpu: threadTime() - cpu, faults: threadFaults() - faults}
		growing = table.Growing()
		after(at+len(batch), s, before && growing)
	}
	return nil
}

// useAll uses every chain once more, in another order, so that what the table knows of its
// records' recency is out of date everywhere.
func (b *tableBench) useAll(ctx context.Context) error {
	chains := b.o.Records / b.o.Chain
	keys := make([]connector.Key, b.o.Chain)
	refs := make([]index.Ref, 0, b.o.Chain)
	for n, chain := range rand.New(rand.NewPCG(2, 2)).Perm(chains) {
		if err := ctx.Err(); err != nil {
			return err
		}
		chainKeys(keys, chain)
		_, pins := b.table.Prefix(0, []connector.Shard{0}, keys, refs[:0])
		b.table.Unpin(pins...)
		b.o.progress("using every record once more", (n+1)*b.o.Chain, chains*b.o.Chain)
	}
	return nil
}

// choose chooses victims, in turn with a computation that is as long.
func (b *tableBench) choose() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	choices, controls := make([]float64, 0, tableChoices), make([]float64, 0, tableChoices)
	victims, work := 0, 1
	var out []index.Removed
	runtime.GC()
	for range tableChoices {
		cpu := threadTime()
		_, ok := b.table.Choose(tableClass)
		choices = append(choices, (threadTime() - cpu).Seconds())
		if !ok {
			break
		}
		n := b.table.Chosen(tableClass)
		out = b.table.Evict(tableClass, n, out[:0])
		victims += n
		cpu = threadTime()
		compute(work)
		took := (threadTime() - cpu).Seconds()
		if len(choices) <= calibrations {
			work = max(1, int(float64(work)*min(2, choices[len(choices)-1]/took)))
			continue
		}
		controls = append(controls, took)
	}
	b.res.ChoiceSeconds, b.res.ChoiceP99Seconds, b.res.ChoiceMaxSeconds = quantiles(choices)
	b.res.ControlSeconds, b.res.ControlP99Seconds, b.res.ControlMaxSeconds = quantiles(controls)
	b.res.VictimsPerChoice = float64(victims) / float64(len(choices))
}

// compute makes keys and throws them away.
//
//go:noinline
func compute(keys int) (x connector.Key) {
	for i := range keys {
		x[0] ^= Key(keys, i)[0]
	}
	return x
}

// quantiles sorts values, and returns median, 99th percentile and the greatest, 0 of none.
func quantiles(x []float64) (median, p99, longest float64) {
	if len(x) == 0 {
		return 0, 0, 0
	}
	slices.Sort(x)
	return x[len(x)/2], x[len(x)*99/100], x[len(x)-1]
}
