package fetch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	objects "github.com/kvconn/kvconn/store/object/format"
)

// is is errors.Is where nil matches nil.
func is(err, cause error) bool { return err == cause || cause != nil && errors.Is(err, cause) }

const small, large = 10_000, 300_000

func TestRecordsOfAnObjectAreOneGet(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		ops := opsOf(b.put(16, small)...)
		slices.Reverse(ops)
		before := b.server.Counts()
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		if n := b.server.Counts().Get - before.Get; n != 1 {
			t.Errorf("%d GETs", n)
		}
		if s := b.Stats(); s.Ranges != 1 || s.Records != 16 || s.ReadBytes != 16*small || s.Hedges != 0 || s.Resumed != 0 || len(s.Failed) != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestCallsShareRanges(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(16, small)
		before := b.server.Counts()
		var calls sync.WaitGroup
		for part := range slices.Chunk(records, 4) {
			calls.Go(func() {
				ops := opsOf(part...)
				b.read(t.Context(), ops...)
				want(t, nil, ops...)
			})
		}
		calls.Wait()
		if n := b.server.Counts().Get - before.Get; n != 1 {
			t.Errorf("%d GETs", n)
		}
	})
}

// Gaps are read through up to a bound, and ranges end with the record that begins before 8 MiB.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		name         string
		n, payload   int
		every        int // one record in every is read
		gets, ranges uint64
	}{
		{"together", 64, large, 1, 3, 3}, // 19 MiB
		{"with gaps", 12, 100_000, 3, 1, 1},
		{"with gaps that are too large", 12, large, 2, 6, 6},
		{"2 MiB each", 8, 2 << 20, 1, 2, 2},
		{"larger than a range", 2, 9 << 20, 1, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, b *bench) {
				var ops []*store.ReadOp
				for i, w := range b.put(c.n, c.payload) {
					if i%c.every == 0 {
						ops = append(ops, w.op())
					}
				}
				before := b.server.Counts()
				b.read(t.Context(), ops...)
				want(t, nil, ops...)
				if n := b.server.Counts().Get - before.Get; n != c.gets {
					t.Errorf("%d GETs, want %d", n, c.gets)
				}
				if s := b.Stats(); s.Ranges != c.ranges {
					t.Errorf("%d ranges, want %d", s.Ranges, c.ranges)
				}
			})
		})
	}
}

func TestOneRecordTwice(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		w := b.put(2, small)[1]
		ops := opsOf(w, w, w)
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
	})
}

func TestWhatIsNotThere(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		good := b.put(2, small)
		unknown, short, unaligned := b.record(small).op(), good[0].op(), good[0].op()
		short.Payload = nil
		unaligned.Payload = store.AlignedBuffer(2 * small)[1 : small+1]
		op := good[1].op()
		b.read(t.Context(), unknown, short, unaligned, op)
		want(t, store.ErrGone, unknown)
		want(t, store.ErrInvalid, short, unaligned)
		want(t, nil, op)
		b.read(t.Context())
	})
}

func TestAnotherPrefixIsAMiss(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(3, small)
		ops := opsOf(records...)
		ops[0].Proof[3]++
		ops[1].Parent[3]++
		b.read(t.Context(), ops...)
		want(t, store.ErrMismatch, ops[:2]...)
		want(t, nil, ops[2])
		if b.whyLost(records[0].place.Object) != 0 {
			t.Error("the object was reported")
		}
	})
}

func TestMissingObjectIsLost(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		gone, there := b.put(4, small), b.put(4, small)
		o := gone[0].place.Object
		if err := b.bucket.Delete(t.Context(), []string{objects.DataName(o).String()}); err != nil {
			t.Fatal(err)
		}
		lost, good := opsOf(gone...), opsOf(there...)
		b.read(t.Context(), append(slices.Clone(lost), good...)...)
		want(t, store.ErrGone, lost...)
		want(t, nil, good...)
		if why := b.whyLost(o); why != objects.CauseLost {
			t.Errorf("reported as %v", why)
		}
		if s := b.Stats(); s.Failed["gone"] != 4 || s.Lost["lost"] != 1 {
			t.Errorf("stats %+v", s)
		}
		if !strings.Contains(b.log.String(), "remedy=") {
			t.Errorf("no remedy in the log: %s", b.log)
		}
	})
}

// An object that ends early: what is whole is read, the rest is lost, whether the range begins in it or not.
func TestShortObjectIsLost(t *testing.T) {
	slot := int(objects.SlotBytes(small))
	for _, c := range []struct{ bytes, whole int }{
		{0, 0}, {1, 0}, {headerBytes, 0}, {slot + headerBytes - 1, 1}, {slot + headerBytes + 1, 1}, {2*slot + slot/2, 2}, {3 * slot, 3},
	} {
		inBubble(t, nil, func(t *testing.T, b *bench) {
			records := b.putChanged(4, small, func(object []byte) []byte { return object[:c.bytes] })
			ops := opsOf(records...)
			b.read(t.Context(), ops...)
			want(t, nil, ops[:c.whole]...)
			want(t, store.ErrGone, ops[c.whole:]...)
			if why := b.whyLost(records[0].place.Object); why != objects.CauseLost {
				t.Errorf("%d bytes: reported as %v", c.bytes, why)
			}
		})
	}
}

// A single byte that is wrong anywhere in what counts makes the record corrupt, after a second look.
func TestWrongBytesAreCorrupt(t *testing.T) {
	slot := int(objects.SlotBytes(small))
	for _, at := range []int{
		0, 9, 11, 13, 20, 33, 37, 41, 50, 81, 97, 113, 145, 153, 161, 165, 181, 190, 1000, headerBytes - 1, // header
		headerBytes, headerBytes + small/2, headerBytes + small - 1, // payload
	} {
		inBubble(t, nil, func(t *testing.T, b *bench) {
			records := b.putChanged(3, small, func(object []byte) []byte {
				object[slot+at] ^= 0x10
				return object
			})
			ops := opsOf(records...)
			b.read(t.Context(), ops...)
			want(t, store.ErrCorrupt, ops[1])
			want(t, nil, ops[0], ops[2])
			if why := b.whyLost(records[0].place.Object); why != objects.CauseDamaged {
				t.Errorf("byte %d: reported as %v", at, why)
			}
			if s := b.Stats(); s.Resumed != 1 || s.Failed["corrupt"] != 1 {
				t.Errorf("byte %d: stats %+v", at, s)
			}
		})
	}
}

// Intact bytes in another place: of another object, of another record of the object.
func TestMovedRecordsAreCorrupt(t *testing.T) {
	slot := int(objects.SlotBytes(small))
	inBubble(t, nil, func(t *testing.T, b *bench) {
		var other []byte
		b.putChanged(2, small, func(object []byte) []byte {
			other = object
			return object
		})
		swapped := opsOf(b.putChanged(2, small, func(object []byte) []byte {
			return append(slices.Clone(object[slot:]), object[:slot]...)
		})...)
		foreign := opsOf(b.putChanged(2, small, func([]byte) []byte { return other })...)
		ops := append(swapped, foreign...)
		b.read(t.Context(), ops...)
		want(t, store.ErrCorrupt, ops...)
	})
}

// Bits that flip on the way are read again.
func TestFlippedOnTheWay(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(8, small)
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, For: 1, Do: s3proxy.Effect{Flip: 3}})
		ops := opsOf(records...)
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		if b.whyLost(records[0].place.Object) != 0 {
			t.Error("the object was reported")
		}
	})
}

func TestNewerRecordIsAMiss(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.putChanged(2, small, func(object []byte) []byte {
			reseal(object[:headerBytes], func(h []byte) { h[8] = 99 })
			return object
		})
		ops := opsOf(records...)
		b.read(t.Context(), ops...)
		want(t, store.ErrUnreadable, ops[0])
		want(t, nil, ops[1])
		if b.whyLost(records[0].place.Object) != 0 {
			t.Error("the object was reported")
		}
	})
}

// A connection that breaks, an error of the server: the rest is asked for again.
func TestBrokenBodies(t *testing.T) {
	for _, c := range []struct {
		name string
		do   s3proxy.Effect
		n    int64
	}{
		{"cut in a header", s3proxy.Effect{Cut: 100}, 1},
		{"cut in a payload", s3proxy.Effect{Cut: 60_000}, 1},
		{"reset", s3proxy.Effect{Reset: true}, 3},
		{"lost", s3proxy.Effect{Lost: true}, 2},
		{"failure", s3proxy.Effect{Status: 500, Code: "InternalError"}, 3},
		{"throttling", s3proxy.Effect{Status: 503, Code: "SlowDown"}, 3},
		{"a page", s3proxy.Effect{Page: 502}, 2},
		{"expired", s3proxy.Effect{Status: 400, Code: "ExpiredToken"}, 1},
		{"the whole object", s3proxy.Effect{Whole: true}, 1},
		{"stalled", s3proxy.Effect{Stall: time.Minute}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, b *bench) {
				records := b.put(16, small)[3:] // not from the start: ranges count
				b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, For: c.n, Do: c.do})
				ops := opsOf(records...)
				b.read(t.Context(), ops...)
				want(t, nil, ops...)
				if b.proxy.Injected() != c.n {
					t.Errorf("%d faults", b.proxy.Injected())
				}
				if b.whyLost(records[0].place.Object) != 0 {
					t.Error("the object was reported")
				}
			})
		})
	}
}

// What lasts fails with an error that says so, and in time.
func TestLastingFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    s3proxy.Effect
		cause error
		lost  objects.Cause
	}{
		{"cut at the same byte", s3proxy.Effect{Cut: 100}, store.ErrGone, objects.CauseLost},
		{"404", s3proxy.Effect{Status: 404, Code: "NoSuchKey"}, store.ErrGone, objects.CauseLost},
		{"416", s3proxy.Effect{Status: 416, Code: "InvalidRange"}, store.ErrGone, objects.CauseLost},
		{"archived", s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}, store.ErrGone, objects.CauseArchived},
		{"404 of a proxy", s3proxy.Effect{Page: 404}, store.ErrIO, 0},
		{"no bucket", s3proxy.Effect{Status: 404, Code: "NoSuchBucket"}, store.ErrIO, 0},
		{"denied", s3proxy.Effect{Status: 403, Code: "AccessDenied"}, store.ErrIO, 0},
		{"clock", s3proxy.Effect{Status: 403, Code: "RequestTimeTooSkewed"}, store.ErrIO, 0},
		{"failure", s3proxy.Effect{Status: 500, Code: "InternalError"}, store.ErrIO, 0},
		{"reset", s3proxy.Effect{Reset: true}, store.ErrIO, 0},
		{"the whole object", s3proxy.Effect{Whole: true}, store.ErrIO, 0},
		{"hang", s3proxy.Effect{Delay: time.Minute}, store.ErrTimeout, 0},
		{"stall", s3proxy.Effect{Stall: time.Minute}, store.ErrTimeout, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, b *bench) {
				records := b.put(3, large)[1:]
				b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: c.do})
				ops := opsOf(records...)
				began := time.Now()
				b.read(t.Context(), ops...)
				took(t, began, 0, 5*time.Second+100*time.Millisecond)
				bad := ops
				if c.do.Stall > 0 {
					bad = ops[1:] // the first half of the body came
				}
				want(t, c.cause, bad...)
				if why := b.whyLost(records[0].place.Object); why != c.lost {
					t.Errorf("reported as %v, want %v", why, c.lost)
				}
			})
		})
	}
}

// After a bucket that hung the next read works.
func TestHangOfAMinute(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(8, small)
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Until: time.Minute, Do: s3proxy.Effect{Delay: time.Hour}})
		for range 4 {
			ops := opsOf(records...)
			began := time.Now()
			b.read(t.Context(), ops...)
			took(t, began, 0, 5*time.Second+100*time.Millisecond)
			for _, op := range ops {
				if !is(op.Err, store.ErrTimeout) && !is(op.Err, store.ErrIO) {
					t.Errorf("%v", op.Err)
				}
			}
		}
		b.proxy.Stop()
		time.Sleep(time.Minute)
		ops := opsOf(records...)
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
	})
}

// A context that ends, at any moment of a read, ends its ops at once and those of nobody else.
func TestContextEnds(t *testing.T) {
	for after := range 40 {
		inBubble(t, func(_ *bucket.Options, o *Options) { o.Connections = 1 }, func(t *testing.T, b *bench) {
			records := b.put(8, small)
			b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 10 * time.Millisecond}},
				s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Stall: 20 * time.Millisecond}})
			var calls sync.WaitGroup
			wait := time.Duration(after) * time.Millisecond
			for i := range 2 {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					if i == 1 {
						ctx, cancel = context.WithTimeout(t.Context(), wait)
					}
					defer cancel()
					var mine []*written // every other record of the same range
					for j := i; j < len(records); j += 2 {
						mine = append(mine, records[j])
					}
					ops := opsOf(mine...)
					began := time.Now()
					b.read(ctx, ops...)
					if i == 1 {
						took(t, began, 0, wait)
						for _, op := range ops {
							if op.Err != nil {
								want(t, store.ErrTimeout, op)
								want(t, context.DeadlineExceeded, op)
							}
						}
						return
					}
					want(t, nil, ops...)
				})
			}
			calls.Wait()
		})
	}
}

func TestCloseEndsReads(t *testing.T) {
	inBubble(t, func(_ *bucket.Options, o *Options) { o.Connections = 2 }, func(t *testing.T, b *bench) {
		records := append(append(b.put(8, small), b.put(8, small)...), b.put(8, small)...)
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Every: 2, Do: s3proxy.Effect{Delay: time.Hour}},
			s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Stall: time.Hour}})
		began := time.Now()
		go func() {
			time.Sleep(50 * time.Millisecond)
			b.Close()
		}()
		ops := opsOf(records...)
		b.read(t.Context(), ops...)
		took(t, began, 0, 50*time.Millisecond)
		for _, op := range ops {
			if op.Err != nil {
				want(t, store.ErrClosed, op)
			}
		}
		late := records[0].op()
		b.read(t.Context(), late)
		want(t, store.ErrClosed, late)
	})
}
