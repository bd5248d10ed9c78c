package steward

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

// What idle nodes ask of a bucket in a day, and what a thousand of them would cost. Dollars are those of ADR 16.
func TestIdleCost(t *testing.T) {
	const perPut, perGet = 5e-6, 0.4e-6
	parts := uint64(24) // of a day that are waited for
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		parts = 1
	}
	day := func(nodes int) (c s3mem.Counts, dollars float64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, s3mem.Options{})
			defer w.end()
			for i := range nodes {
				w.start(fmt.Sprint("node", i))
			}
			time.Sleep(time.Minute)
			w.nodes[0].mustSave(1)
			time.Sleep(time.Hour)
			before := w.server.Counts()
			time.Sleep(24 * time.Hour / time.Duration(parts))
			c = w.server.Counts()
			c.Get -= before.Get
			c.Put -= before.Put
			c.List -= before.List
			c.Get, c.Put, c.List = c.Get*parts, c.Put*parts, c.List*parts
		})
		return c, float64(c.Put+c.List)*perPut + float64(c.Get+c.Head)*perGet
	}
	two, dollars2 := day(2)
	fifty, dollars50 := day(50)
	// Beside the steward's, which there is one of, requests grow with the nodes.
	thousand := dollars50 + 950*(dollars50-dollars2)/48
	t.Logf("2 nodes: GET %d, PUT %d, LIST %d, $%.3f a day", two.Get, two.Put, two.List, dollars2)
	t.Logf("50 nodes: GET %d, PUT %d, LIST %d, $%.3f a day", fifty.Get, fifty.Put, fifty.List, dollars50)
	t.Logf("1,000 nodes, extrapolated: $%.2f a day", thousand)
	if thousand > 20 {
		t.Errorf("1,000 idle nodes cost $%.2f a day, at most 20 are allowed", thousand)
	}
	if dollars2 > 0.2 || dollars50 > 0.3 {
		t.Errorf("2 nodes cost $%.3f, 50 nodes $%.3f", dollars2, dollars50)
	}
}

// A node that joins reads the head, its parts and what log there is after it: nothing else, however many records
// there are.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		a := w.start("a").mustReady()
		id, _ := a.follower.Bucket()
		const records, objects = 64, 1_000_000 / 64
		l := format.List{Bucket: id}
		for sequence := range uint64(25) {
			l.Objects = nil
			l.Name = format.InName(a.outbox.Writer(), 1000+sequence)
			l.Writer = a.outbox.Writer()
			for range objects / 25 {
				l.Objects = append(l.Objects, a.whole(records))
			}
			b, err := l.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			w.put(l.Name.String(), b)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		a.mustSave(1)
		time.Sleep(time.Minute)
		b := w.node("b")
		before := w.server.Counts()
		if err := b.follower.CatchUp(b.ctx); err != nil {
			t.Fatal(err)
		}
		after := w.server.Counts()
		parts, logs := len(w.list(format.PartPrefix)), len(w.list(format.LogPrefix))
		if n := len(b.book.live()); n != objects+1 {
			t.Errorf("%d objects, want %d", n, objects+1)
		}
		gets, read := after.Get-before.Get, after.ReadBytes-before.ReadBytes
		t.Logf("%d GET, %d bytes, for %d records; %d parts and %d objects of the log are there", gets, read, objects*records, parts, logs)
		// format, head, parts, one object of the log and up to 3 that are not there.
		if others := after.Requests() - before.Requests() - gets; others != 0 || gets > uint64(parts)+6 {
			t.Errorf("%d GET, %d other requests", gets, others)
		}
		if perRecord := float64(read) / (objects * records); perRecord > 22 {
			t.Errorf("%.1f bytes a record", perRecord)
		}
	})
}

var _ Follower = (*follow.Follower)(nil)
