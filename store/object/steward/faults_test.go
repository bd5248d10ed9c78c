package steward

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// A steward that dies at any of its requests, carried out or not, leaves what the next one goes on with.
func TestStewardDiesAtEachRequest(t *testing.T) {
	random := seed.Random(t, 0)
	most, step := int64(45), int64(15)
	switch {
	case os.Getenv("KVCONN_TEST_LONG") != "":
		most, step = 80, 1
	case testing.Short():
		step = 22
	}
	for _, c := range []s3mem.Conditions{s3mem.Honoured, s3mem.Ignored} {
		for _, after := range []bool{false, true} {
			for at := int64(1) + random.Int64N(step); at <= most; at += step {
				t.Run(fmt.Sprintf("conditions %d, carried out %v, request %d", c, after, at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { dieAt(t, c, after, at) })
				})
			}
		}
	}
}

func dieAt(t *testing.T, c s3mem.Conditions, after bool, at int64) {
	w := newWorld(t, s3mem.Options{Conditions: c})
	defer w.end()
	a := w.start("a")
	time.Sleep(20 * time.Second)
	b := w.node("b")
	b.follow()
	b.running.Go(func() { _ = b.outbox.Run(b.ctx) })
	var ids []format.ObjectID
	for range 3 {
		time.Sleep(time.Second)
		ids = append(ids, b.mustSave(2))
	}
	// So much of the log is old that the next merge comes with a fold.
	time.Sleep(foldAfter - 10*time.Second)
	a.transport.after.Store(after)
	a.transport.n.Store(0)
	a.transport.at.Store(at)
	ids = append(ids, b.mustSave(2))
	time.Sleep(40 * time.Second)
	a.stop()
	next := w.start("c")
	ids = append(ids, next.mustReady().mustSave(2))
	time.Sleep(foldAfter + 5*time.Minute)
	ids = append(ids, b.mustSave(1))
	time.Sleep(2 * time.Hour)
	w.agree(ids, b, next, w.joined("d"))
	if left := w.list(format.InPrefix); len(left) > 0 {
		t.Errorf("%d lists of writers are left", len(left))
	}
	if parts := w.list(format.PartPrefix); len(parts) > 3 {
		t.Errorf("%d parts are left", len(parts))
	}
	if t.Failed() {
		t.Log(w.log.String())
	}
}

// mustReady waits until the node knows the bucket.
func (n *node) mustReady() *node {
	n.w.t.Helper()
	for range 100 {
		if _, ok := n.follower.Bucket(); ok {
			return n
		}
		time.Sleep(time.Second)
	}
	n.w.t.Fatalf("%s does not know the bucket", n.name)
	return nil
}

// A node that dies while it takes the lease leaves it to others after a minute.
func TestDiesWhileTakingTheLease(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		var ids []format.ObjectID
		for at := int64(1); at <= 12; at++ {
			n := w.node(fmt.Sprint("mortal", at))
			n.transport.n.Store(0)
			n.transport.at.Store(at)
			n.transport.after.Store(at%2 == 0)
			n.run()
			time.Sleep(3 * time.Minute)
			n.stop()
		}
		last := w.start("last").mustReady()
		ids = append(ids, last.mustSave(1))
		time.Sleep(5 * time.Minute)
		w.agree(ids, last, w.joined("d"))
	})
}

// A steward that slept stops, and costs nothing that another merged meanwhile.
func TestStewardSleeps(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		b := w.start("b")
		var ids []format.ObjectID
		for round := range 4 {
			ids = append(ids, b.mustReady().mustSave(1))
			time.Sleep(time.Duration(round) * 300 * time.Millisecond)
			a.transport.asleep.Store(true)
			ids = append(ids, b.mustSave(1))
			time.Sleep(3 * time.Minute)
			a.transport.asleep.Store(false)
			for range 10 {
				ids = append(ids, b.mustSave(1))
				time.Sleep(time.Second)
			}
			time.Sleep(5 * time.Minute)
			if n := len(w.stewards()); n != 1 {
				t.Errorf("%d stewards", n)
			}
			for s := range w.nodes { // let a be the next one again
				if w.nodes[s].steward.Stats().Steward && w.nodes[s] != a {
					w.delete(format.LeaseFile)
					a.steward.Look()
				}
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Hour)
		w.agree(ids, a, b, w.joined("d"))
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

// Two stewards that merge at one time cost requests, and nothing else.
func TestTwoStewards(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		time.Sleep(20 * time.Second)
		var ids []format.ObjectID
		for range 30 {
			w.delete(format.LeaseFile) // so that another takes it
			for _, n := range []*node{a, b, c} {
				n.steward.Look()
				ids = append(ids, n.mustSave(1))
			}
			time.Sleep(7 * time.Second)
		}
		time.Sleep(5 * time.Minute)
		if n := len(w.stewards()); n != 1 {
			t.Errorf("%d stewards", n)
		}
		time.Sleep(time.Hour)
		w.agree(ids, a, b, c, w.joined("d"))
	})
}

// A node that was away for longer than the log is kept reads all again.
func TestGap(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		b := w.start("b")
		ids := []format.ObjectID{a.mustSave(1)}
		time.Sleep(time.Minute)
		b.transport.asleep.Store(true)
		for range 20 {
			ids = append(ids, a.mustSave(1))
			time.Sleep(10 * time.Minute)
		}
		time.Sleep(2 * time.Hour)
		ids = append(ids, a.mustSave(1))
		b.transport.asleep.Store(false)
		time.Sleep(15 * time.Minute)
		w.agree(ids, a, b, w.joined("d"))
		if s := b.follower.Stats(); s.Gaps != 1 || b.book.forgets != 1 {
			t.Errorf("%+v, forgotten %d times", s, b.book.forgets)
		}
	})
}

// An object of the log that was written twice is applied twice, and who was in the first alone tells again.
func TestFork(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		b := w.start("b")
		ids := []format.ObjectID{b.mustReady().mustSave(1)}
		time.Sleep(time.Minute)
		ids = append(ids, b.mustSave(1))
		time.Sleep(time.Minute)
		position, _ := b.follower.Position()
		// Another steward, which had not heard of the lease, writes the same object of the log.
		other := a.whole(1)
		id, _ := a.follower.Bucket()
		name := format.LogName(position)
		l, err := format.DecodeList(w.get(name.String()), name, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.Objects, l.Sources = []format.Object{other}, nil
		data, err := l.Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		w.put(name.String(), data)
		// The steward that wrote it last goes on from there.
		list := &format.List{Name: format.LogName(position + 1), Bucket: id, Previous: format.SumOf(data)}
		if data, err = list.Encode(nil); err != nil {
			t.Fatal(err)
		}
		w.put(list.Name.String(), data)
		ids = append(ids, other.ID)
		time.Sleep(foldAfter + 5*time.Minute)
		w.agree(ids, a, b, w.joined("e"))
		if s := b.follower.Stats(); s.Forks == 0 {
			t.Errorf("%+v", s)
		}
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

// A head that is lost, damaged or foreign is made again from the names of parts.
func TestLostHead(t *testing.T) {
	for name, damage := range map[string]func(w *world){
		"lost":    func(w *world) { w.delete(format.HeadFile) },
		"damaged": func(w *world) { w.put(format.HeadFile, []byte("no JSON")) },
		"foreign": func(w *world) {
			b, err := format.Head{Bucket: format.NewBucketID()}.Encode()
			if err != nil {
				w.t.Fatal(err)
			}
			w.put(format.HeadFile, b)
		},
	} {
		if name == "foreign" && os.Getenv("KVCONN_TEST_LONG") == "" {
			continue // what is read is not this bucket's, as with damage
		}
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(t *testing.T, w *world) {
				a := w.start("a")
				var ids []format.ObjectID
				for range 12 { // some parts are merged, and some are not deleted yet
					time.Sleep(foldAfter + time.Minute)
					ids = append(ids, a.mustSave(1))
				}
				time.Sleep(2 * time.Hour)
				ids = append(ids, a.mustSave(1))
				time.Sleep(time.Minute)
				damage(w)
				// A node that begins now may be misled for minutes, and no longer.
				b := w.start("b")
				time.Sleep(headEvery + 5*time.Minute)
				w.agree(ids, a, b, w.joined("c"))
				ids = append(ids, b.mustSave(1))
				time.Sleep(time.Minute)
				w.agree(ids, a, b, w.joined("d"))
			})
		})
		t.Run(name+", and nobody was there", func(t *testing.T) {
			inWorlds(t, func(t *testing.T, w *world) {
				a := w.start("a")
				time.Sleep(10 * time.Second)
				ids := []format.ObjectID{a.mustSave(1)}
				time.Sleep(3 * time.Hour)
				ids = append(ids, a.mustSave(1))
				time.Sleep(time.Minute)
				a.stop()
				damage(w)
				b := w.start("b")
				time.Sleep(5 * time.Minute)
				ids = append(ids, b.mustReady().mustSave(1))
				time.Sleep(time.Minute)
				w.agree(ids, b, w.joined("c"))
				if t.Failed() {
					t.Log(w.log.String())
				}
			})
		})
	}
}

// A node that finds the bucket emptied forgets what was in it, and begins again.
func TestEmptied(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		time.Sleep(time.Minute)
		for range 5 {
			a.mustSave(1)
			b.mustSave(1)
			time.Sleep(foldAfter / 2)
		}
		for _, m := range w.list("") {
			w.delete(m.Name)
		}
		time.Sleep(headEvery + 5*time.Minute)
		w.agree(nil, a, b)
		if a.emptied.Load() != 1 || b.emptied.Load() != 1 {
			t.Errorf("emptied: %d, %d", a.emptied.Load(), b.emptied.Load())
		}
		ids := []format.ObjectID{a.mustSave(1), b.mustSave(1)}
		time.Sleep(5 * time.Minute)
		w.agree(ids, a, b, w.joined("c"))
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

// The file format is lost with all else there: what is left of the old bucket is foreign, and in nobody's way.
func TestLostFormat(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		for range 5 {
			a.mustSave(1)
			time.Sleep(foldAfter / 4)
		}
		a.stop()
		w.delete(format.FormatFile)
		b := w.start("b").mustReady()
		ids := []format.ObjectID{b.mustSave(1), b.mustSave(2)}
		time.Sleep(10 * time.Minute)
		w.agree(ids, b, w.joined("c"))
		time.Sleep(3 * time.Hour)
		ids = append(ids, b.mustSave(1))
		time.Sleep(time.Minute)
		w.agree(ids, b, w.joined("d"))
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

// A bucket that a newer program has changed is left alone, and it is said.
func TestNewerBucket(t *testing.T) {
	newer := func(w *world, file, old, with string) {
		b := string(w.get(file))
		at := strings.LastIndex(b, `"sum"`)
		b = strings.Replace(b[:at], old, with, 1)
		w.put(file, []byte(b+fmt.Sprintf("\"sum\": \"%s\"\n}\n", xxh(b))))
	}
	for file, change := range map[string][2]string{
		format.FormatFile: {`"format": 1`, `"format": 2`},
		format.HeadFile:   {`"needs": 0`, `"needs": 4`},
	} {
		t.Run(file, func(t *testing.T) {
			inWorlds(t, func(t *testing.T, w *world) {
				a := w.start("a")
				time.Sleep(10 * time.Second)
				a.mustSave(1)
				time.Sleep(foldAfter + time.Minute)
				a.stop()
				newer(w, file, change[0], change[1])
				before := w.list("")
				b := w.start("b")
				time.Sleep(2 * time.Hour)
				if _, ok := b.follower.Bucket(); ok || len(w.stewards()) > 0 && file == format.FormatFile {
					t.Error("the bucket is used")
				}
				if _, ok := b.save(1); ok {
					t.Error("it is written")
				}
				after := w.list("")
				if file == format.FormatFile && fmt.Sprint(tags(before)) != fmt.Sprint(tags(after)) {
					t.Errorf("changed: %v to %v", tags(before), tags(after))
				}
				if !strings.Contains(w.log.String(), "upgrade this node") {
					t.Error("nothing was logged")
				}
			})
		})
	}
}

func tags(all []bucket.Meta) (s []string) {
	for _, m := range all {
		s = append(s, m.Name+" "+m.ETag)
	}
	return s
}

// tries is how often a damaged list is read.
const tries = 3

// Lists that are damaged, of another bucket, newer, or not sealed are not applied; what is of no use goes, and
// what is newer stays.
func TestBadLists(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		id, _ := a.follower.Bucket()
		list := func(seq uint64, in format.BucketID, ring *seal.Ring) (string, []byte) {
			l := &format.List{Name: format.InName(format.NewWriterID(), seq), Bucket: in, Objects: []format.Object{a.whole(1)}}
			b, err := l.Encode(ring)
			if err != nil {
				t.Fatal(err)
			}
			return l.Name.String(), b
		}
		damaged, b := list(1, id, nil)
		b[130] ^= 1
		w.put(damaged, b)
		foreign, b := list(2, format.NewBucketID(), nil)
		w.put(foreign, b)
		newer, b := list(3, id, nil)
		b[11] = 0x80 // an unknown flag
		fixHeader(b)
		w.put(newer, b)
		large := format.InName(format.NewWriterID(), 4).String()
		w.put(large, make([]byte, format.MaxInBytes+1))
		w.put(format.InPrefix+"not a name", []byte("x"))
		time.Sleep(time.Minute)
		saved := a.mustSave(1)
		time.Sleep(time.Minute)
		w.agree([]format.ObjectID{saved}, a, w.joined("b"))
		if s := a.steward.Stats(); s.Damaged != 2 || s.Foreign != 1 || s.Newer != 1 {
			t.Errorf("%+v", s)
		}
		for line := range strings.Lines(w.log.String()) {
			if strings.Contains(line, "was not merged") && (!strings.Contains(line, `remedy="`) || strings.Contains(line, `remedy=""`)) {
				t.Errorf("it does not say what to do: %s", line)
			}
		}
		time.Sleep(2 * time.Hour)
		var left []string
		for _, m := range w.list(format.InPrefix) {
			left = append(left, m.Name)
		}
		if len(left) != 2 || left[0] != newer && left[1] != newer {
			t.Errorf("left: %v", left)
		}
		// An object of the log that is damaged, or newer, is passed over; its lists come again, or not.
		for i := range 2 {
			a.mustSave(1)
			time.Sleep(20 * time.Second)
			n, _ := a.follower.Position()
			name := format.LogName(n).String()
			b := w.get(name)
			if i == 0 {
				b[200] ^= 1
			} else {
				b[11] = 0x80
				fixHeader(b)
			}
			w.put(name, b)
			c := w.node(fmt.Sprint("c", i))
			for range tries {
				_ = c.follower.CatchUp(c.ctx)
			}
			a.mustSave(1)
			time.Sleep(5 * time.Minute)
			for range tries {
				_ = c.follower.CatchUp(c.ctx)
			}
			s := c.follower.Stats()
			if at, _ := a.follower.Position(); s.Position != at {
				t.Errorf("at %d of %d", s.Position, at)
			}
		}
	})
}

// Leftovers of thousands of writers are merged in few objects of the log, or deleted where they are foreign.
func TestLeftovers(t *testing.T) {
	lists := 2000
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		lists = 10_000
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		a := w.node("a")
		if err := a.follower.CatchUp(a.ctx); err != nil {
			t.Fatal(err)
		}
		id, _ := a.follower.Bucket()
		var ids []format.ObjectID
		raw := w.raw()
		for i := range lists {
			l := &format.List{Name: format.InName(format.NewWriterID(), 1), Bucket: id, Objects: []format.Object{a.whole(1)}}
			if i%100 == 0 {
				l.Bucket = format.BucketID{1}
			} else {
				ids = append(ids, l.Objects[0].ID)
			}
			b, err := l.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := raw.Put(t.Context(), l.Name.String(), strings.NewReader(string(b)), int64(len(b)), bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
		before := w.server.Counts()
		a.run()
		time.Sleep(5 * time.Minute)
		w.agree(ids, a)
		if p, _ := a.follower.Position(); p > 10 {
			t.Errorf("%d objects of the log", p)
		}
		after := w.server.Counts()
		if gets := after.Get - before.Get; gets > uint64(lists)+300 {
			t.Errorf("%d GET", gets)
		}
		if deletes := after.Delete + after.DeleteMany - before.Delete - before.DeleteMany; deletes > 30 {
			t.Errorf("%d DELETE", deletes)
		}
		time.Sleep(2 * time.Hour)
		if left := w.list(format.InPrefix); len(left) > 0 {
			t.Errorf("%d lists are left", len(left))
		}
	})
}

// What a reader reports as lost is removed for all once the steward has looked.
func TestLostObjects(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		time.Sleep(time.Minute)
		there, gone, cut := a.mustSave(1), a.mustSave(1), a.mustSave(1)
		time.Sleep(time.Minute)
		w.delete(format.DataName(gone).String())
		w.put(format.DataName(cut).String(), w.get(format.DataName(cut).String())[:8000])
		for _, id := range []format.ObjectID{there, gone, cut} {
			b.outbox.Lose(id, format.CauseLost)
		}
		time.Sleep(time.Minute)
		w.agree([]format.ObjectID{there}, a, b, w.joined("c"))
	})
}

// lateWriter collects: when it is called for the first time a list comes, which it has merged.
type lateWriter struct {
	come  func()
	known func() bool
	was   atomic.Bool
	merge error
	found bool
}

func (l *lateWriter) Collect(ctx context.Context, term Term) error {
	if !l.was.Swap(true) {
		l.come()
		l.merge = term.Merge(ctx, nil, nil)
		l.found = l.known()
	}
	return nil
}

// A collector can have lists merged that came after the steward's own merge.
func TestCollectorMerges(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.node("a")
		l := &lateWriter{}
		var o format.Object
		l.come = func() {
			id, _ := a.follower.Bucket()
			o = a.whole(1)
			in := &format.List{Name: format.InName(format.NewWriterID(), 1), Bucket: id, Objects: []format.Object{o}}
			b, err := in.Encode(nil)
			if err != nil {
				t.Error(err)
			}
			w.put(in.Name.String(), b)
		}
		l.known = func() bool { return slices.Contains(a.book.live(), o.ID) }
		a.steward.o.Collector = l
		a.run()
		time.Sleep(time.Minute)
		if a.stop(); !l.was.Load() || l.merge != nil || !l.found {
			t.Errorf("called %v, merged %v, known %v", l.was.Load(), l.merge, l.found)
		}
	})
}

// A report of an object that this steward cannot look at keeps it from nothing else.
func TestReportsOfObjectsWithAnotherKey(t *testing.T) {
	key := func(text string) *seal.Ring {
		r, err := seal.New(seal.Key([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		w.ring = key("0123456789abcdefghijklmnopqrstuv")
		defer w.end()
		a := w.start("a")
		time.Sleep(time.Minute)
		there, gone := a.mustSave(1), a.mustSave(1)
		w.ring = key("another key of thirty-two bytes.")
		foreign, ok := a.save(1)
		if !ok {
			t.Fatal("it cannot save")
		}
		w.ring = key("0123456789abcdefghijklmnopqrstuv")
		time.Sleep(time.Minute)
		w.delete(format.DataName(gone).String())
		a.outbox.Lose(foreign, format.CauseLost)
		a.outbox.Lose(gone, format.CauseLost)
		time.Sleep(30 * time.Minute)
		want := []format.ObjectID{there, foreign}
		slices.SortFunc(want, func(x, y format.ObjectID) int { return bytes.Compare(x[:], y[:]) })
		if got := a.book.live(); !slices.Equal(got, want) {
			t.Errorf("%v are offered, want %v", got, want)
		}
		if s := a.steward.Stats(); s.Folds == 0 {
			t.Errorf("nothing was folded: %+v", s)
		}
	})
}
