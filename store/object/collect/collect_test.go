package collect

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

// inBubble runs a test where time passes at once, with a steward.
func inBubble(t *testing.T, o Options, f func(t *testing.T, w *world, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.node(o)
		w.steward = n
		f(t, w, n)
	})
}

func TestTheCapRemovesTheColdest(t *testing.T) {
	inBubble(t, Options{MaxBytes: 100 * objectBytes}, func(t *testing.T, _ *world, n *node) {
		ids := n.fill(89)
		n.must(n.Pass(t.Context()))
		n.want("below", ids, 89, 89)
		ids = append(ids, n.fill(1)...)
		time.Sleep(time.Second)
		n.use(ids[0])
		n.must(n.Pass(t.Context()))
		n.want("at 90 percent", ids, 85, 90)
		n.want("the coldest", ids[1:6], 0, 5)
		n.want("the others", append(ids[6:], ids[0]), 85, 85)
		n.must(n.Pass(t.Context()))
		n.want("nothing more to do", ids, 85, 90)
		if s := n.Collector.Stats(); s.RemovedCap != 5 || s.Deleted != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAgeRemovesWhatNobodyUses(t *testing.T) {
	inBubble(t, Options{MaxAge: time.Hour}, func(t *testing.T, _ *world, n *node) {
		ids := n.fill(10)
		time.Sleep(time.Hour)
		n.use(ids[3])
		time.Sleep(time.Second)
		n.must(n.Pass(t.Context()))
		n.want("after an hour", ids, 1, 10)
		if s := n.Collector.Stats(); s.RemovedAge != 9 {
			t.Errorf("%+v", s)
		}
	})
}

// A node that polled just before the removal offers the object for 5 minutes more, and a load that begins
// then takes 5 at most: it finds the bytes.
func TestAReaderInTheMiddleOfADeletion(t *testing.T) {
	inBubble(t, Options{MaxAge: time.Hour}, func(t *testing.T, w *world, n *node) {
		reader := w.node(Options{})
		ids := n.fill(1)
		time.Sleep(time.Hour + time.Second)
		n.must(reader.follow(t.Context()))
		n.must(n.Pass(t.Context()))
		passes, stop := n.passes()
		defer stop()
		time.Sleep(5*time.Minute - time.Second)
		if i, _ := reader.cat.Object(ids[0]); !i.Offered {
			t.Error("the reader heard of it without a poll")
		}
		time.Sleep(5 * time.Minute)
		if !reader.there(ids[0]) {
			t.Error("the bytes are gone under a load")
		}
		reader.want("after a poll", ids, 0, 1)
		time.Sleep(7 * time.Minute)
		reader.want("after the grace", ids, 0, 0)
		if _, known := n.cat.Object(ids[0]); known {
			t.Error("the tombstone is there still")
		}
		if passes.Load() < 15 {
			t.Errorf("%d passes", passes.Load())
		}
	})
}

// Whatever request a steward dies at, the next one ends its work, and what is to stay stays.
func TestAStewardDiesAtEachRequest(t *testing.T) {
	o := Options{MaxBytes: 20 * objectBytes}
	work := func(n *node) error { // until the bytes are gone, and an orphan
		for range 20 {
			if err := n.Pass(n.w.t.Context()); err != nil {
				return err
			}
			time.Sleep(time.Minute)
		}
		_, err := n.Orphans(n.w.t.Context())
		return err
	}
	for _, late := range []bool{false, true} {
		for cut, over := 0, false; !over; cut++ {
			inBubble(t, o, func(t *testing.T, w *world, n *node) {
				orphan := n.upload()
				time.Sleep(24 * time.Hour)
				ids := n.fill(20)
				n.client.left, n.client.late = cut, late
				if err := work(n); err == nil {
					over = true
				} else if !errors.Is(err, errCut) {
					t.Fatalf("cut %d: %v", cut, err)
				}
				heir := w.node(o)
				w.steward = heir
				heir.must(heir.Merge(t.Context(), nil, nil))
				heir.must(work(heir))
				heir.want("after the heir's work", ids, 17, 17)
				heir.want("the orphan", []format.ObjectID{orphan.ID}, 0, 0)
				if heir.known() != 17 {
					t.Errorf("cut %d: %d objects are known", cut, heir.known())
				}
			})
			if cut > 500 {
				t.Fatal("the work never ends")
			}
		}
	}
}

func TestOrphans(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, w *world, n *node) {
		old := []format.ObjectID{n.upload().ID, n.upload().ID}
		listed := n.fill(1)
		untold := n.upload() // its list waits
		foreign := format.DataPrefix + "readme"
		_, err := n.bucket.Put(t.Context(), foreign, strings.NewReader("x"), 1, bucket.Condition{})
		n.must(err)
		time.Sleep(24 * time.Hour)
		young := n.upload().ID
		n.tell(untold)
		deleted, err := n.Orphans(t.Context())
		n.must(err)
		if deleted != 2 {
			t.Errorf("%d orphans", deleted)
		}
		n.want("old ones", old, 0, 0)
		n.want("listed", append(listed, untold.ID), 2, 2)
		n.want("young", []format.ObjectID{young}, 0, 1)
		if b, err := n.bucket.Get(t.Context(), foreign, 0, 0); err != nil {
			t.Errorf("what is not ours: %v", err)
		} else {
			b.Close()
		}
		if s := n.Collector.Stats(); s.Orphans != 2 || s.Foreign != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A newer program's list cannot be merged: what it tells of is no orphan.
func TestObjectsOfANewerProgramStay(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, w *world, n *node) {
		o := n.upload()
		l := &format.List{Name: format.InName(w.writer, 1<<20), Bucket: w.id, Writer: w.writer, Objects: []format.Object{o}}
		b, err := l.Encode(nil)
		n.must(err)
		newer(b)
		_, err = n.bucket.Put(t.Context(), l.Name.String(), bytes.NewReader(b), int64(len(b)), bucket.Condition{})
		n.must(err)
		time.Sleep(48 * time.Hour)
		deleted, err := n.Orphans(t.Context())
		n.must(err)
		if deleted != 0 || !n.there(o.ID) {
			t.Error("it was deleted")
		}
	})
}

// A steward that slept between its look at the objects and at the lists knows of them before it deletes any,
// or is not the steward any more.
func TestAStewardThatSlept(t *testing.T) {
	for name, returns := range map[string]bool{"and is replaced": false, "and is the steward again": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, w *world, n *node) {
				late := n.upload()
				time.Sleep(25 * time.Hour)
				other := w.node(Options{})
				n.client.listed = func() {
					w.steward = other
					time.Sleep(48 * time.Hour)
					other.tell(late)
					n.must(other.Merge(t.Context(), nil, nil))
					if returns {
						w.steward = n
					}
				}
				_, err := n.Orphans(t.Context())
				if !returns && !errors.Is(err, errLease) {
					t.Errorf("error %v", err)
				}
				other.want("the late one", []format.ObjectID{late.ID}, 1, 1)
			})
		})
	}
	t.Run("before its look", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, w *world, n *node) {
			other := w.node(Options{})
			w.steward = other
			ids := other.fill(20)
			time.Sleep(48 * time.Hour)
			w.steward = n
			deleted, err := n.Orphans(t.Context())
			n.must(err)
			if deleted != 0 {
				t.Errorf("%d were deleted", deleted)
			}
			n.want("all", ids, 20, 20)
		})
	})
}

func TestNothingIsCollectedByAWrongClock(t *testing.T) {
	inBubble(t, Options{MaxAge: time.Hour}, func(t *testing.T, w *world, n *node) {
		ids := n.fill(3)
		time.Sleep(2 * time.Hour)
		n.skew.Store(-int64(time.Hour))
		if err := n.Pass(t.Context()); !errors.Is(err, ErrClock) {
			t.Errorf("pass: %v", err)
		}
		if _, err := n.Orphans(t.Context()); !errors.Is(err, ErrClock) {
			t.Errorf("orphans: %v", err)
		}
		n.want("by a wrong clock", ids, 3, 3)
		n.skew.Store(int64(time.Second))
		n.must(n.Pass(t.Context()))
		n.want("by a right one", ids, 0, 3)
	})
}

func TestLeftoversOfManyNodes(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, w *world, n *node) {
		const nodes = 10_000
		for i := range nodes {
			id := format.NewObjectID(format.NewWriterID(), uint64(i))
			_, err := n.bucket.Put(t.Context(), format.DataName(id).String(), strings.NewReader("x"), 1, bucket.Condition{})
			n.must(err)
		}
		time.Sleep(24 * time.Hour)
		before := w.server.Counts()
		deleted, err := n.Orphans(t.Context())
		n.must(err)
		after := w.server.Counts()
		if deleted != nodes || after.DeleteMany-before.DeleteMany != nodes/1000 || after.List-before.List > nodes/1000+4 {
			t.Errorf("%d deleted with %d requests, found with %d", deleted, after.DeleteMany-before.DeleteMany, after.List-before.List)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"bytes": {MaxBytes: -1}, "age": {MaxAge: time.Second}, "grace": {Grace: time.Millisecond}, "orphans": {OrphanAge: -1},
	} {
		if _, err := New(nil, nil, nil, nil, o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
