package readio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/record"
)

// device is a file whose page at an offset is filled with a byte of that offset.
type device struct {
	fsio.File
	before func() error
}

func (d *device) ReadVec(a, b []byte, at int64) error {
	if err := d.before(); err != nil {
		return err
	}
	for _, part := range [][]byte{a, b} {
		for page := range slices.Chunk(part, fsio.Align) {
			copy(page, pageAt(at))
			at += fsio.Align
		}
	}
	return nil
}

func pageAt(at int64) []byte { return bytes.Repeat([]byte{byte(at / fsio.Align * 31)}, fsio.Align) }

// onDevice are records that all lie on one device, each where its key says.
type onDevice struct {
	device *device
	count  func()
	verify func() // takes its time
	pins   atomic.Int64
}

func (d *onDevice) Locate(op *Read) error {
	d.pins.Add(1)
	op.Place = Place{File: d.device, Offset: int64(op.ID.Key[0]) * fsio.Align}
	return nil
}

func (d *onDevice) Verify(op *Read) {
	if d.verify != nil {
		d.verify()
	}
	copy(op.Payload, op.Stored)
	if op.Err = op.IOErr; op.Err == nil {
		at := op.Offset + record.HeaderBytes
		for page := range slices.Chunk(op.Payload, fsio.Align) {
			if want := pageAt(at)[:len(page)]; !bytes.Equal(page, want) {
				op.Err = fmt.Errorf("page at %d: %w", at, store.ErrCorrupt)
			}
			at += fsio.Align
		}
	}
}

func (d *onDevice) Overdue(Place, error) {}
func (d *onDevice) Unpin(index.Ref)      { d.pins.Add(-1) }

func (d *onDevice) Count(*store.ReadOp) {
	if d.count != nil {
		d.count()
	}
}

const timeout = time.Second

// start starts a reader of few chunks at a time. It runs in a bubble.
func start(d *onDevice) *Reader {
	r := New(Options{Budget: 6 * fsio.Align, ChunkBytes: 2 * fsio.Align, Timeout: timeout, Clock: time.Now,
		Gate: NewGate(1), Headers: new(Headers), Records: d})
	r.Start()
	return r
}

// A disk that answered between the deadline of a read and its report had the caller told that the
// buffer is free, and told so again later: it let go of a buffer that by then was another read's.
func TestOpIsReportedBeforeItSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		d := &onDevice{device: &device{before: func() error { <-answer; return nil }}}
		d.count = func() { // just before the report
			close(answer)
			synctest.Wait()
		}
		r := start(d)
		var told []string
		op := &store.ReadOp{Payload: store.AlignedBuffer(fsio.Align), OnSettled: func(op *store.ReadOp) {
			told = append(told, fmt.Sprint("settled: ", op.Settled()))
		}}
		r.Read(t.Context(), []*store.ReadOp{op}, func(op *store.ReadOp) {
			told = append(told, fmt.Sprint("done, settled: ", op.Settled()))
		}, false)
		if want := []string{"done, settled: false", "settled: true"}; !slices.Equal(told, want) || !errors.Is(op.Err, store.ErrTimeout) {
			t.Errorf("%q, %v; want %q", told, op.Err, want)
		}
		if r.Close() || d.pins.Load() != 0 {
			t.Errorf("%d pins are left of a reader whose disk has answered", d.pins.Load())
		}
	})
}

// Close does not wait for a disk that does not answer, and says that buffers are in use.
func TestCloseDoesNotWaitForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, settled := make(chan struct{}), false
		d := &onDevice{device: &device{before: func() error { <-answer; return nil }}}
		r := start(d)
		op := &store.ReadOp{Payload: store.AlignedBuffer(fsio.Align), OnSettled: func(*store.ReadOp) { settled = true }}
		r.Read(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {}, false)
		if hung := r.Close(); !hung || op.Settled() || d.pins.Load() != 1 {
			t.Errorf("hung %v, settled %v, %d pins", hung, op.Settled(), d.pins.Load())
		}
		close(answer)
		synctest.Wait()
		if !settled || !op.Settled() || d.pins.Load() != 0 {
			t.Errorf("settled %v and %v, %d pins after the answer", settled, op.Settled(), d.pins.Load())
		}
		late := &store.ReadOp{Payload: store.AlignedBuffer(fsio.Align)}
		if r.Read(t.Context(), []*store.ReadOp{late}, func(*store.ReadOp) {}, false); !errors.Is(late.Err, store.ErrClosed) {
			t.Errorf("a read of a closed reader: %v", late.Err)
		}
	})
}

// The disk is asked at once for all that the budget has room for, of one record as of several.
func TestDiskIsAskedForAllThatTheBudgetAllows(t *testing.T) {
	for _, c := range []struct{ records, pages, requests int }{{1, 10, 2}, {5, 1, 3}} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			answer := make(chan struct{})
			d := &onDevice{device: &device{before: func() error { asked.Add(1); <-answer; return nil }}}
			r := start(d)
			synctest.Wait() // all of its goroutines are asleep
			ops := make([]*store.ReadOp, c.records)
			for i := range ops {
				ops[i] = &store.ReadOp{Payload: store.AlignedBuffer(c.pages * fsio.Align)}
			}
			ended := make(chan struct{})
			go func() {
				r.Read(t.Context(), ops, func(*store.ReadOp) {}, false)
				close(ended)
			}()
			if synctest.Wait(); int(asked.Load()) != c.requests {
				t.Errorf("%d requests for %d records of %d pages, want %d", asked.Load(), c.records, c.pages, c.requests)
			}
			close(answer)
			<-ended
			for i, op := range ops {
				if op.Err != nil {
					t.Errorf("record %d: %v", i, op.Err)
				}
			}
			if r.Close() {
				t.Error("hung")
			}
		})
	}
}

// Of what the disk owes, the bytes that no load has asked for are told apart.
func TestSpeedTellsWhatIsReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		r := start(&onDevice{device: &device{before: func() error { <-answer; return nil }}})
		ops := make([]*store.ReadOp, 5)
		for i := range ops {
			ops[i] = &store.ReadOp{Payload: store.AlignedBuffer(3 * fsio.Align), Ahead: i < 2}
		}
		ended := make(chan struct{})
		go func() {
			r.Read(t.Context(), ops, func(*store.ReadOp) {}, false)
			close(ended)
		}()
		synctest.Wait()
		const each = record.HeaderBytes + 3*fsio.Align
		if v := r.Speed(); v.QueuedBytes != 5*each || v.AheadBytes != 2*each {
			t.Errorf("%+v, want %d bytes queued, %d of them ahead", v, 5*each, 2*each)
		}
		close(answer)
		<-ended
		if v := r.Speed(); v.QueuedBytes != 0 || v.AheadBytes != 0 {
			t.Errorf("%+v after all has been delivered", v)
		}
		if r.Close() {
			t.Error("hung")
		}
	})
}

// Whatever the disk does, each op is reported once, is verified if it has no error, and settles once
// if its buffer was in use.
func TestReadsEndOnceOnABadDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := seed.Random(t, 0)
		var mu sync.Mutex
		random := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return g.IntN(n)
		}
		d := &onDevice{device: &device{before: func() error {
			switch random(20) {
			case 0:
				return io.ErrUnexpectedEOF
			case 1:
				time.Sleep(time.Duration(random(int(3 * timeout))))
			default:
				time.Sleep(time.Duration(random(int(timeout / 20))))
			}
			return nil
		}}}
		d.verify = func() {
			if random(10) == 0 {
				time.Sleep(timeout)
			}
		}
		r := start(d)
		var ended [4]atomic.Int64 // without error, by a fault, late, settled later
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random(int(20*timeout))))
					readSome(ctx, t, r, random, &ended)
					cancel()
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		for i := range ended {
			if ended[i].Load() == 0 {
				t.Errorf("no op ended in way %d", i)
			}
		}
		if queued, inFlight := r.Depth(); queued != 0 || inFlight != 0 || d.pins.Load() != 0 || r.Speed().QueuedBytes != 0 || r.Speed().AheadBytes != 0 {
			t.Errorf("%d queued, %d bytes in flight, %d pins, %+v", queued, inFlight, d.pins.Load(), r.Speed())
		}
		if r.Close() {
			t.Error("hung")
		}
	})
}

// readSome reads records of random sizes and checks how each ends.
func readSome(ctx context.Context, t *testing.T, r *Reader, random func(int) int, ended *[4]atomic.Int64) {
	var reports, settles [5]atomic.Int64
	ops := make([]*store.ReadOp, len(reports))
	for i := range ops {
		ops[i] = &store.ReadOp{Payload: store.AlignedBuffer(1 + random(10*fsio.Align)), Ahead: i%2 == 0, Owner: i}
		ops[i].ID.Key[0] = byte(random(100))
		ops[i].OnSettled = func(op *store.ReadOp) {
			if settles[i].Add(1); reports[i].Load() != 1 || !op.Settled() {
				t.Error("settled before the report")
			}
			ended[3].Add(1)
		}
	}
	var inUse sync.Map
	r.Read(ctx, ops, func(op *store.ReadOp) {
		if i := op.Owner.(int); reports[i].Add(1) != 1 {
			t.Errorf("op %d is reported twice", i)
		}
		if !op.Settled() {
			inUse.Store(op, true)
		}
		switch {
		case op.Err == nil:
			ended[0].Add(1)
		case errors.Is(op.Err, io.ErrUnexpectedEOF):
			ended[1].Add(1)
		case errors.Is(op.Err, store.ErrTimeout):
			ended[2].Add(1)
		default:
			t.Error(op.Err)
		}
	}, false)
	time.Sleep(10 * timeout)
	for i, op := range ops {
		_, late := inUse.Load(op)
		if want := map[bool]int64{true: 1}[late]; reports[i].Load() != 1 || settles[i].Load() != want || !op.Settled() {
			t.Errorf("op %d: %d reports; settled %d times, want %d", i, reports[i].Load(), settles[i].Load(), want)
		}
	}
}

// While what was read is being opened, the disk reads on into other buffers, up to a bound.
func TestBuffersOfSealedRecordsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const records, pages = 40, 3
		opened := make(chan struct{})
		d := &onDevice{device: &device{before: func() error { return nil }}, verify: func() { <-opened }}
		r := New(Options{Budget: 6 * fsio.Align, ChunkBytes: 2 * fsio.Align, Timeout: timeout, Sealed: true, Clock: time.Now,
			Gate: NewGate(1), Headers: new(Headers), Records: d})
		r.Start()
		ops := make([]*store.ReadOp, records)
		for i := range ops {
			ops[i] = &store.ReadOp{Payload: store.AlignedBuffer(pages*fsio.Align - i)}
			ops[i].ID.Key[0] = byte(i)
		}
		go func() {
			synctest.Wait()
			r.mu.Lock()
			if held := r.scratch.held; held == 0 || held > scratchBudgets*r.budget {
				t.Errorf("buffers of %d bytes are held, with a budget of %d", held, r.budget)
			}
			r.mu.Unlock()
			close(opened)
		}()
		r.Read(t.Context(), ops, func(*store.ReadOp) {}, false)
		for i, op := range ops {
			if op.Err != nil {
				t.Errorf("record %d: %v", i, op.Err)
			}
		}
		if r.scratch.held != 0 || len(r.scratch.free) > scratchBudgets*6/pages {
			t.Errorf("%d bytes are held, %d buffers kept", r.scratch.held, len(r.scratch.free))
		}
		r.Close()
	})
}
