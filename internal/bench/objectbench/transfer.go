package objectbench

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/internal/bench/slab"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/catalog"
	"github.com/kvconn/kvconn/store/object/fetch"
	"github.com/kvconn/kvconn/store/object/format"
)

// rounds are measurements in turn with raw ones.
type rounds struct{ rawRates, rates, ratios, rawCPU, cpu []float64 }

// turn measures once. What comes first changes from turn to turn, since it may find the machine in another state.
func (r *rounds) turn(payloadBytes int64, raw, own func() error) (err error) {
	var rate, rawRate float64
	for i := range 2 {
		m, rawNow := storebench.StartMeter(), (len(r.rates)+i)%2 == 0
		var cpu float64
		if rawNow {
			err = raw()
			rawRate, cpu = m.Stop(payloadBytes)
			r.rawCPU = append(r.rawCPU, cpu)
		} else {
			err = own()
			rate, cpu = m.Stop(payloadBytes)
			r.cpu = append(r.cpu, cpu)
		}
		if err != nil {
			return err
		}
	}
	r.rawRates, r.rates, r.ratios = append(r.rawRates, rawRate), append(r.rates, rate), append(r.ratios, rate/rawRate)
	return nil
}

func (r *rounds) pair() Pair {
	return Pair{
		RawBytesPerS: storebench.Median(r.rawRates), BytesPerS: storebench.Median(r.rates), Ratio: storebench.Median(r.ratios),
		RawCPUSPerGiB: storebench.Median(r.rawCPU), CPUSPerGiB: storebench.Median(r.cpu),
	}
}

// measureForm uploads and fetches records of a form.
func (b *bench) measureForm(ctx context.Context, f *form) error {
	out := Form{Name: f.name}
	objects, err := b.measureUploads(ctx, f, &out)
	if err != nil {
		return err
	}
	var stored int64
	for i := range objects {
		stored += int64(objects[i].Bytes)
	}
	out.StoredRatio = float64(stored) / float64(b.o.roundBytes())
	if err := b.measureFetch(ctx, f, objects, &out); err != nil {
		return err
	}
	b.res.Forms = append(b.res.Forms, out)
	return b.delete(ctx, objects)
}

func (b *bench) delete(ctx context.Context, objects []format.Object) error {
	names := make([]string, len(objects))
	for i := range objects {
		names[i] = format.DataName(objects[i].ID).String()
	}
	return b.bucket.Delete(ctx, names)
}

// parallel calls f for 0 to n-1, each worker one at a time, until there is an error.
func parallel(ctx context.Context, workers, n int, f func(ctx context.Context, worker, i int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for w := range workers {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := f(ctx, w, int(i)); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// measureUploads builds and puts objects, in turn with raw PUTs of built ones. It returns what the last round put.
func (b *bench) measureUploads(ctx context.Context, f *form, out *Form) (objects []format.Object, err error) {
	if objects, err = b.upload(ctx, f); err != nil { // warm up, and what raw requests put
		return nil, err
	}
	before := b.bucket.Stats().Requests[string(bucket.Put)]
	var all rounds
	for range b.o.Rounds {
		extra := b.newObjects()
		err := all.turn(b.o.roundBytes(), func() error {
			return parallel(ctx, b.o.Uploads, len(extra), func(ctx context.Context, w, i int) error {
				return b.raw.put(ctx, format.DataName(extra[i].ID).String(), f.built[w])
			})
		}, func() (err error) {
			extra = append(extra, objects...)
			objects, err = b.upload(ctx, f)
			return err
		})
		if err = errors.Join(err, b.delete(ctx, extra)); err != nil {
			return nil, err
		}
	}
	out.Upload = all.pair()
	if f.plain() {
		puts := float64(b.bucket.Stats().Requests[string(bucket.Put)] - before)
		b.res.Requests.PutsPerGiB, b.res.Requests.PutsPer8MiB = b.perBytes(puts)
	}
	return objects, nil
}

// perBytes is how many of the requests of all rounds a GiB of payloads takes, and 8 MiB.
func (b *bench) perBytes(n float64) (perGiB, per8MiB float64) {
	perByte := n / float64(b.o.roundBytes()*int64(b.o.Rounds))
	return perByte * (1 << 30), perByte * (8 << 20)
}

// newObjects are the objects of a round, with nothing but their names.
func (b *bench) newObjects() []format.Object {
	objects := make([]format.Object, b.o.objects())
	for i := range objects {
		objects[i].ID = b.newObject()
	}
	return objects
}

// upload builds and puts the objects of a round.
func (b *bench) upload(ctx context.Context, f *form) ([]format.Object, error) {
	objects := b.newObjects()
	err := parallel(ctx, b.o.Uploads, len(objects), func(ctx context.Context, w, i int) (err error) {
		if f.built[w], objects[i], err = b.build(f, w, i, objects[i].ID); err != nil {
			return err
		}
		_, err = b.bucket.Put(ctx, format.DataName(objects[i].ID).String(), bytes.NewReader(f.built[w]), int64(len(f.built[w])), bucket.Condition{Absent: true})
		return err
	})
	for w := range f.built { // of a busy machine one worker may have had none
		if f.built[w] == nil && err == nil {
			f.built[w], _, err = b.build(f, w, 0, objects[0].ID)
		}
	}
	return objects, err
}

// stretch is a range of an object that was asked for.
type stretch struct {
	name        string
	from, bytes int64
}

// listener is a bucket that notes what it is asked for.
type listener struct {
	fetch.Getter
	mu   sync.Mutex
	seen []stretch
}

// Get implements [fetch.Getter].
func (l *listener) Get(ctx context.Context, name string, from, bytes int64) (*bucket.Body, error) {
	l.mu.Lock()
	l.seen = append(l.seen, stretch{name, from, bytes})
	l.mu.Unlock()
	return l.Getter.Get(ctx, name, from, bytes)
}

// take returns what was asked for since the last call, in the sequence of asking. What lies in a stretch before
// it was asked for again.
func (l *listener) take() (seen []stretch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.seen {
		if !slices.ContainsFunc(seen, s.in) {
			seen = append(seen, s)
		}
	}
	l.seen = nil
	return seen
}

// in reports whether a stretch is part of another.
func (s stretch) in(o stretch) bool {
	return s.name == o.name && s.from >= o.from && s.from+s.bytes <= o.from+o.bytes
}

// places is a catalog whose objects are all there.
type places struct{ *catalog.Catalog }

// Lost implements [fetch.Catalog]. The read that found the loss fails, and the bench with it.
func (p places) Lost(o format.ObjectID, why format.Cause) { p.Catalog.Lost(o, why) }

// newCatalog returns a catalog in which all records are readable.
func (b *bench) newCatalog() (*catalog.Catalog, error) {
	return catalog.New(catalog.Options{Now: func() format.Seconds { return format.SecondsOf(time.Now()) }, Readable: func(uint16, uint8) bool { return true }, IndexBytes: max(1<<30, int64(b.o.Records)*128)})
}

// measureFetch reads and verifies the records of a round, in turn with raw GETs of the same ranges.
func (b *bench) measureFetch(ctx context.Context, f *form, objects []format.Object, out *Form) (err error) {
	c, err := b.newCatalog()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	c.Apply(&format.List{Objects: objects})
	heard := &listener{Getter: b.bucket}
	fetcher, err := fetch.New(fetch.Options{
		Bucket: heard, Catalog: places{c}, Ring: f.ring, Connections: b.o.Connections, RangeBytes: rangeBytes,
		InFlightBytes: int64(b.o.Connections) * b.longestRange(), Logger: slog.New(slog.DiscardHandler),
		Timeout: time.Minute, Stall: 20 * time.Second, // how much goes through is measured, and no patience
	})
	if err != nil {
		return err
	}
	defer fetcher.Close()
	if err := b.fetch(ctx, fetcher, nil); err != nil { // warm up, and what raw requests get
		return err
	}
	before, stats := b.bucket.Stats().Requests[string(bucket.Get)], fetcher.Stats()
	var all rounds
	for range b.o.Rounds {
		ranges := heard.take()
		err := all.turn(b.o.roundBytes(), func() error { return b.fetchRaw(ctx, ranges) },
			func() error { return b.fetch(ctx, fetcher, nil) })
		if err != nil {
			return err
		}
	}
	out.Fetch, out.Hedges = all.pair(), fetcher.Stats().Hedges-stats.Hedges
	if f.plain() {
		gets := float64(b.bucket.Stats().Requests[string(bucket.Get)] - before)
		b.res.Requests.GetsPerGiB, b.res.Requests.GetsPer8MiB = b.perBytes(gets)
		b.res.Requests.GetsPerRange = gets / float64(fetcher.Stats().Ranges-stats.Ranges)
		return b.measureCopied(ctx, fetcher, heard)
	}
	return nil
}

// measureCopied does the same with records that go on to an engine's memory, as where the engine computes on
// processors: GPUs fetch their copy themselves.
func (b *bench) measureCopied(ctx context.Context, fetcher *fetch.Fetcher, heard *listener) error {
	var all rounds
	for range b.o.Rounds {
		ranges := heard.take()
		err := all.turn(b.o.roundBytes(), func() error { return b.fetchRaw(ctx, ranges) },
			func() error { return b.fetch(ctx, fetcher, b.engineMemory) })
		if err != nil {
			return err
		}
	}
	b.res.FetchCopied = all.pair()
	return nil
}

// callers is how many calls read at one time, and perCall how many records each: a range, and twice as many
// as can be asked for.
func (b *bench) callers() int { return 2 * b.o.Connections }

func (b *bench) perCall() int { return max(1, rangeBytes/b.o.BlockBytes) }

// longestRange is how many bytes a range has at most: its last record may begin rangeBytes after its start.
func (b *bench) longestRange() int64 { return int64(rangeBytes + 2*b.o.slotBytes()) }

// mapMemory maps the memory that records are read into, and about as much for raw ranges: what goes round a
// few buffers in the processor's cache is faster, and nobody who keeps it can do so.
func (b *bench) mapMemory() (err error) {
	if b.memory, err = newSlab(b.callers()*b.perCall(), b.o.BlockBytes); err != nil {
		return err
	}
	if b.engineMemory, err = newSlab(b.callers()*b.perCall(), b.o.BlockBytes); err != nil {
		return err
	}
	b.rawMemory, err = newSlab(b.callers(), int(b.longestRange()))
	return err
}

// newSlab makes a slab whose pages are there.
func newSlab(count, bytes int) (*slab.Slab, error) {
	s, err := slab.New(count, bytes)
	if err != nil {
		return nil, err
	}
	for range count {
		buf := <-s.C()
		clear(buf)
		s.Put(buf)
	}
	return s, nil
}

func (b *bench) unmapMemory() (err error) {
	for _, s := range []*slab.Slab{b.memory, b.rawMemory, b.engineMemory} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// fetch reads all records of a round, and copies each to the memory of an engine unless that is nil.
func (b *bench) fetch(ctx context.Context, fetcher *fetch.Fetcher, engine *slab.Slab) error {
	n, each := b.o.objects()*b.o.perObject(), b.perCall()
	return parallel(ctx, b.callers(), (n+each-1)/each, func(ctx context.Context, _, i int) error {
		ops := make([]*store.ReadOp, min(each, n-i*each))
		for k := range ops {
			ops[k] = &store.ReadOp{Record: b.record(i*each + k), Payload: <-b.memory.C()}
		}
		fetcher.Read(ctx, ops, func(*store.ReadOp) {})
		for _, op := range ops {
			if engine != nil {
				to := <-engine.C()
				copy(to, op.Payload)
				engine.Put(to)
			}
			b.memory.Put(op.Payload)
		}
		failed := slices.IndexFunc(ops, func(op *store.ReadOp) bool { return op.Err != nil })
		if failed < 0 {
			return nil
		}
		return ops[failed].Err
	})
}

// fetchRaw reads ranges.
func (b *bench) fetchRaw(ctx context.Context, ranges []stretch) error {
	return parallel(ctx, b.o.Connections, len(ranges), func(ctx context.Context, _, i int) error {
		buf := <-b.rawMemory.C()
		defer b.rawMemory.Put(buf)
		return b.raw.get(ctx, ranges[i].name, ranges[i].from, buf[:ranges[i].bytes])
	})
}
