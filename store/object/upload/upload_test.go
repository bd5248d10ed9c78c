package upload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
)

func TestAnObjectIsClosedByAge(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.start()
		b.save(1, 0, 2)
		pass(b.o.Age - time.Second)
		b.save(1, 2, 3)
		b.want()
		pass(time.Second)
		b.want(chainOf(1, 0, 3))
		b.save(1, 3, 4)
		pass(b.o.Age)
		b.want(chainOf(1, 0, 3), chainOf(1, 3, 4))
		b.wantStats("after two objects", func(s Stats) bool {
			return s.QueueBytes == 0 && s.QueueRecords == 0 && s.Uploaded == 4 && s.Objects == 2 && s.Snapshots == 1 && s.Dropped == 0
		})
	})
}

func TestAnObjectIsClosedBySize(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.start()
		b.save(1, 0, perObject-1)
		b.want()
		b.save(1, perObject-1, perObject+2)
		pass(0)
		b.want(chainOf(1, 0, perObject))
		pass(b.o.Age)
		b.want(chainOf(1, 0, perObject), chainOf(1, perObject, perObject+2))
	})
}

func TestAPayloadLargerThanAnObjectIsOneOfItsOwn(t *testing.T) {
	l := newLane(laneID{}, 40<<20)
	if n := l.perObject(32 << 20); n != 1 {
		t.Errorf("%d records an object", n)
	}
	l.payloadBytes = 1
	if n := l.perObject(64 << 20); n != maxObjectRecords {
		t.Errorf("%d records an object", n)
	}
}

func TestASnapshotIsOffered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := 2; i >= 0; i-- { // children before their parents
			b.save(1, i, i+1)
			b.save(2, i, i+1)
		}
		b.start()
		pass(b.o.Age)
		b.want(append(chainOf(1, 0, 3), chainOf(2, 0, 3)...))
	})
}

func TestRunsGoWholeWhereTheyFit(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.hold = true
		b.options.Uploads = 1
		b.start()
		b.save(0, 0, perObject) // holds the uploader
		for i := range 5 {      // two prompts computed at one time
			b.save(1, i, i+1)
			b.save(2, i, i+1)
		}
		b.save(3, 0, 3)
		b.to.letGo()
		pass(b.o.Age)
		b.want(chainOf(0, 0, perObject), chainOf(1, 0, 5), append(chainOf(2, 0, 5), chainOf(3, 0, 3)...))
	})
}

func TestALongRunIsDivided(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 20 {
			b.save(1, i, i+1)
		}
		b.options.Uploads = 1
		b.start()
		pass(b.o.Age)
		b.want(chainOf(1, 0, 8), chainOf(1, 8, 16), chainOf(1, 16, 20))
	})
}

func TestShardsAndNamespacesKeepApart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.namespace("other")
		b.start()
		for i := range 4 {
			b.saveOne(b.record(b.ns, 0, 1, i))
			b.saveOne(b.record(b.ns, 7, 1, i))
			b.saveOne(b.record(other, 0, 1, i))
		}
		pass(b.o.Age)
		one := chainOf(1, 0, 4)
		b.want(one, one, one)
	})
}

func TestWhatTheBucketHasIsLeftOut(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		has := func(i int) { b.to.set(func() { b.to.have[b.record(b.ns, 0, 1, i).ID] = true }) }
		has(0)
		b.start()
		b.save(1, 0, 4)
		has(1) // another node was faster
		pass(b.o.Age)
		b.want(chainOf(1, 2, 4))
		b.wantStats("two were there", func(s Stats) bool { return s.Deduplicated == 2 && s.Uploaded == 2 })
	})
}

func TestWhatHasGoneIsNotUploaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, tiertest.Options{MaxRecords: 4})
		b.start()
		b.save(1, 0, 6) // evicts the first two
		pass(b.o.Age)
		b.want(chainOf(1, 2, 6))
		b.wantStats("two have gone", func(s Stats) bool { return s.Gone == 2 && s.Dropped == 0 })
		b.save(2, 0, 1)
		b.from.Flip(b.record(b.ns, 0, 2, 0).ID)
		pass(b.o.Age)
		b.wantStats("one is corrupt", func(s Stats) bool { return s.Dropped == 1 && s.Objects == 1 })
		b.end()
	})
}

func TestTheQueueIsBounded(t *testing.T) {
	for name, bound := range map[string]func(*Options){
		"records": func(o *Options) { o.QueueRecords = 10 },
		"bytes":   func(o *Options) { o.QueueBytes = 10 * payloadBytes },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.to.hold = true
				b.options.Uploads = 1
				bound(&b.options)
				b.start()
				b.save(1, 0, perObject) // in memory
				b.save(1, perObject, perObject+15)
				b.wantStats("five found no room", func(s Stats) bool {
					return s.QueueRecords == 10 && s.QueueBytes == 10*payloadBytes && s.Dropped == 5
				})
				if !strings.Contains(b.log.String(), "the queue is full") {
					t.Error("no line in the log")
				}
				b.to.letGo()
				pass(2 * b.o.Age)
				b.Used(b.ns, []connector.Shard{0}, chainOf(1, 0, perObject+15))
				pass(2 * b.o.Age)
				b.wantStats("their use has offered them again", func(s Stats) bool { return s.Uploaded == perObject+15 })
			})
		})
	}
}

func TestALaggingSubscriptionBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, tiertest.Options{KeepEvents: 4})
		b.start()
		stalled := make(chan struct{})
		b.to.set(func() { b.to.presents = stalled })
		b.save(1, 0, 1)
		b.save(1, 1, 20)
		b.to.set(func() { b.to.presents = nil })
		close(stalled)
		pass(followPause + b.o.Age)
		b.wantStats("a second snapshot has all", func(s Stats) bool { return s.Snapshots == 2 && s.Uploaded == 20 && s.Dropped == 0 })
		b.end()
	})
}

func TestAllIsOfferedAgainToAnEmptiedBucket(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.start()
		b.save(1, 0, 3)
		pass(b.o.Age)
		b.to.set(func() { clear(b.to.have) })
		b.OfferAll()
		pass(b.o.Age)
		b.want(chainOf(1, 0, 3), chainOf(1, 0, 3))
	})
}

func TestAHangingBucketHoldsABoundedNumberOfObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.hold = true
		b.start()
		b.save(1, 0, 100*perObject) // all saves end
		pass(time.Hour)
		b.wantStats("while it hangs", func(s Stats) bool {
			return s.Uploading == 4 && s.QueueRecords == 96*perObject && s.MemoryBytes == 4*b.o.ObjectBytes
		})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, store.ErrTimeout) || time.Since(start) != 10*time.Second {
			t.Errorf("close: %v after %v", err, time.Since(start))
		}
		b.to.letGo()
	})
}

func TestASlowBucketGetsSeveralObjectsAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.takes = 5 * time.Second
		b.save(1, 0, 16*perObject)
		b.start()
		pass(time.Minute)
		b.wantStats("all are there", func(s Stats) bool { return s.Objects == 16 })
		if b.to.most != 4 {
			t.Errorf("%d objects at a time", b.to.most)
		}
	})
}

func TestAFailingBucketIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		calls := 0
		b.to.fail = func([]*store.WriteOp) error { calls++; return store.ErrIO }
		b.start()
		b.save(1, 0, 3)
		pass(b.o.Age + time.Hour)
		if calls < 60 || calls > 70 {
			t.Errorf("%d calls within an hour", calls)
		}
		b.wantStats("they wait", func(s Stats) bool { return s.QueueRecords == 3 && s.Paused && s.Failed == uint64(3*calls) })
		b.to.set(func() { b.to.fail = nil })
		pass(lastPause)
		b.want(chainOf(1, 0, 3))
		b.wantStats("it works", func(s Stats) bool { return !s.Paused && s.Uploaded == 3 })
		if n := strings.Count(b.log.String(), "\n"); n != 2 {
			t.Errorf("%d lines in the log:\n%s", n, b.log)
		}
	})
}

func TestPartOfAnObjectFails(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		failed := false
		b.to.failOp = func(op *store.WriteOp) error {
			switch {
			case op.ID.Key == key(1, 1):
				return store.ErrTooLarge
			case op.ID.Key == key(1, 2) && !failed:
				failed = true
				return store.ErrIO
			}
			return nil
		}
		b.start()
		b.save(1, 0, 4)
		pass(b.o.Age + lastPause)
		b.want([]connector.Key{key(1, 0), key(1, 3)}, chainOf(1, 2, 3))
		b.wantStats("one is refused", func(s Stats) bool { return s.Dropped == 1 && s.Failed == 1 && s.Uploaded == 3 })
	})
}

func TestAThrottledBucketGetsFewerAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		slow := errors.New("slow down")
		b.options.Throttled = func(err error) bool { return errors.Is(err, slow) }
		b.to.takes = time.Second
		b.to.fail = func([]*store.WriteOp) error { return fmt.Errorf("put: %w", slow) }
		b.start()
		b.save(1, 0, 2*perObject)
		pass(10 * time.Second)
		b.wantStats("throttled", func(s Stats) bool { return s.Limit == 1 })
		b.to.set(func() { b.to.fail = nil })
		b.save(2, 0, 40*perObject)
		pass(5 * time.Minute)
		b.wantStats("recovered", func(s Stats) bool { return s.Limit == 4 && s.Uploaded == 42*perObject })
	})
}

func TestStopDrains(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.takes = time.Second
		b.start()
		b.save(1, 0, 3)
		b.save(2, 0, 3)
		start := time.Now()
		if err := b.Close(t.Context()); err != nil || time.Since(start) != time.Second {
			t.Errorf("close: %v after %v", err, time.Since(start))
		}
		b.want(append(chainOf(1, 0, 3), chainOf(2, 0, 3)...))
	})
}

func TestStopDoesNotInsist(t *testing.T) {
	for name, set := range map[string]func(*target){
		"failing": func(g *target) { g.fail = func([]*store.WriteOp) error { return store.ErrIO } },
		"full":    func(g *target) { g.usage = store.Usage{UsedBytes: 1, MaxBytes: 1} },
		"down":    func(g *target) { g.down = true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				set(b.to)
				b.start()
				b.save(1, 0, 3)
				start := time.Now()
				if err := b.Close(t.Context()); !errors.Is(err, store.ErrTimeout) || time.Since(start) != 0 {
					t.Errorf("close: %v after %v", err, time.Since(start))
				}
			})
		})
	}
}

func TestACapPausesUploads(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.usage = store.Usage{UsedBytes: 100, MaxBytes: 100}
		b.start()
		b.save(1, 0, 3)
		pass(time.Minute)
		b.want()
		b.wantStats("at the cap", func(s Stats) bool { return s.Paused && s.QueueRecords == 3 })
		b.to.set(func() { b.to.usage.UsedBytes = 99 })
		pass(fullPause)
		b.want(chainOf(1, 0, 3))
	})
}

// A bucket that takes nothing costs the disk no reads, and what it has already is known all the same.
func TestABucketThatDoesNotWorkPausesUploads(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.to.set(func() {
			b.to.down = true
			b.to.have[b.record(b.ns, 0, 1, 0).ID] = true
		})
		b.start()
		b.save(1, 0, 3)
		pass(10 * time.Minute)
		b.wantStats("while it does not work", func(s Stats) bool {
			return s.Paused && s.QueueRecords == 2 && s.Deduplicated == 1 && s.Failed == 0 && s.MemoryBytes == 0
		})
		if n := b.from.exports.Load(); n != 0 {
			t.Errorf("%d reads for nothing", n)
		}
		b.to.set(func() { b.to.down = false })
		pass(downPause)
		b.want(chainOf(1, 1, 3))
	})
}

func TestPolicies(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.options.Policy = func(m *connector.Manifest) Policy {
			return map[string]Policy{"second": SecondUse, "off": Off}[m.Model]
		}
		second, off := b.namespace("second"), b.namespace("off")
		b.start()
		for i := range 4 {
			b.saveOne(b.record(second, 0, 1, i))
			b.saveOne(b.record(off, 0, 1, i))
		}
		pass(b.o.Age)
		b.want()
		for _, ns := range []connector.NamespaceDigest{b.ns, second, off} {
			b.Used(ns, []connector.Shard{0, 1}, chainOf(1, 0, 3))
		}
		pass(b.o.Age)
		b.want(chainOf(1, 0, 3))
		if b.to.objects[0][0].ID.Namespace != second {
			t.Error("the wrong namespace was uploaded")
		}
	})
}

func TestANamespaceWithoutManifestIsLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.from.manifests = nil
		b.start()
		b.save(1, 0, 3)
		pass(b.o.Age)
		b.want()
	})
}

func TestReadsGiveWayToLoads(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.from.SetSpeed(store.Speed{QueuedBytes: 10, AheadBytes: 5})
		b.start()
		b.save(1, 0, 3)
		pass(b.o.Age + turnTime/2)
		b.want()
		b.from.SetSpeed(store.Speed{QueuedBytes: 5, AheadBytes: 5})
		pass(turnPause)
		b.want(chainOf(1, 0, 3))
		b.from.SetSpeed(store.Speed{QueuedBytes: 10}) // loads without end
		b.save(2, 0, 3)
		pass(b.o.Age + turnTime)
		b.want(chainOf(1, 0, 3), chainOf(2, 0, 3))
	})
}

func TestADeviceThatHangsKeepsItsBuffer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.start()
		b.save(1, 0, 3)
		resume := b.from.Stall()
		pass(b.o.Age + b.o.ReadTimeout + time.Second)
		b.wantStats("given up", func(s Stats) bool { return s.Dropped == 3 && s.Uploading == 0 && s.MemoryBytes == b.o.ObjectBytes })
		if free := len(b.memory.free); free != 0 {
			t.Errorf("%d buffers are free while the device writes to one", free)
		}
		resume()
		pass(0)
		if free := len(b.memory.free); free != 1 {
			t.Errorf("%d buffers are free", free)
		}
	})
}

func TestAShardThatChangesItsSize(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.start()
		b.save(1, 0, 3)
		b.mu.Lock()
		for _, l := range b.q.lanes {
			b.q.resize(l, 2*payloadBytes) // as if these were of another size
		}
		b.mu.Unlock()
		pass(b.o.Age)
		b.want()
		b.wantStats("they have gone", func(s Stats) bool { return s.Gone == 3 && s.QueueBytes == 0 })
		b.save(2, 0, 3)
		pass(b.o.Age)
		b.want(chainOf(2, 0, 3))
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"object":  {ObjectBytes: 5000},
		"large":   {ObjectBytes: store.MaxPayloadBytes * 2},
		"age":     {Age: time.Nanosecond},
		"queue":   {QueueBytes: -1},
		"records": {QueueRecords: -1},
		"uploads": {Uploads: -1},
		"read":    {ReadTimeout: -1},
	} {
		if _, err := Start(nil, nil, o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
