package steward

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store/object/format"
)

// A list has at most 65,536 namespaces. More in one merge go into two objects of the log, and more in one fold into two
// parts, which stay two.
func TestMoreNamespacesThanAListHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		n := w.node("a")
		if err := n.follower.CatchUp(n.ctx); err != nil {
			t.Fatal(err)
		}
		const each, lists = 9000, 8
		var ids []format.ObjectID
		o := n.whole(1)
		for i := range lists * each {
			o.ID = n.outbox.NextID()
			o.Namespace = connector.NamespaceDigest{1, byte(i), byte(i >> 8), byte(i >> 16)}
			n.outbox.Add(o)
			ids = append(ids, o.ID)
		}
		if err := n.outbox.Flush(n.ctx); err != nil {
			t.Fatal(err)
		}
		n.run()
		time.Sleep(time.Minute)
		if left := w.list(format.InPrefix); len(left) > 0 {
			t.Errorf("%d lists are left", len(left))
		}
		w.agree(ids, n)
		time.Sleep(3 * time.Hour)
		if s := n.steward.Stats(); s.Logs != 2 || s.Folds != 2 || s.Compactions != 0 {
			t.Errorf("%+v", s)
		}
		if logs := w.list(format.LogPrefix); len(logs) > 0 {
			t.Errorf("%d objects of the log are left", len(logs))
		}
		w.agree(ids, w.joined("b"))
	})
}

// begun is the term of a node that has taken the lease.
func begun(t *testing.T, n *node) *term {
	t.Helper()
	if err := n.follower.CatchUp(n.ctx); err != nil {
		t.Fatal(err)
	}
	tm := &term{s: n.steward}
	if held, err := tm.take(n.ctx); !held || err != nil {
		t.Fatal(held, err)
	}
	if err := tm.begin(n.ctx); err != nil {
		t.Fatal(err)
	}
	return tm
}

// addPart puts a list into the log and folds it into a part.
func addPart(t *testing.T, n *node, tm *term, l *format.List) {
	t.Helper()
	if err := tm.publish(n.ctx, l); err != nil {
		t.Fatal(err)
	}
	tm.logRecords = foldRecords
	if err := tm.fold(n.ctx); err != nil {
		t.Fatal(err)
	}
}

// Of parts that have too many namespaces together those are merged that have not, and that stops nothing else.
func TestPartsWithTooManyNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		n := w.node("a")
		tm := begun(t, n)
		const each = 9000
		o := n.whole(1)
		var ids []format.ObjectID
		for part := range mergeParts {
			l := &format.List{}
			for i := range each {
				o.ID = n.outbox.NextID()
				o.Namespace = connector.NamespaceDigest{byte(part), byte(i), byte(i >> 8)}
				l.Objects = append(l.Objects, o)
				ids = append(ids, o.ID)
			}
			addPart(t, n, tm, l)
		}
		if len(tm.head.Parts) != 2 {
			t.Errorf("%d parts", len(tm.head.Parts))
		}
		w.agree(ids, w.joined("b"))
	})
}

// A part in an archive class is left where it is, and stops neither the merging of its neighbours nor what follows it.
func TestArchivedPartIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		n := w.node("a")
		tm := begun(t, n)
		var ids []format.ObjectID // what is not in the part that is archived
		for part := range mergeParts + 1 {
			o := n.whole(1)
			addPart(t, n, tm, &format.List{Objects: []format.Object{o}})
			if part > 0 {
				ids = append(ids, o.ID)
			} else {
				name := "prefix/" + tm.head.Parts[0].Name.String()
				w.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: name, Do: s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}})
			}
		}
		if len(tm.head.Parts) != 2 {
			t.Errorf("%d parts", len(tm.head.Parts))
		}
		if text := w.log.String(); !strings.Contains(text, "archive class") {
			t.Errorf("no remedy: %s", text)
		}
		w.agree(ids, w.joined("b"))
	})
}

// A writer's list in an archive class stops no merging of others, is told once, and is left where it is.
func TestArchivedListIsLeft(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		a := w.start("a")
		time.Sleep(10 * time.Second)
		id, _ := a.follower.Bucket()
		l := &format.List{Name: format.InName(format.NewWriterID(), 1), Bucket: id, Objects: []format.Object{a.whole(1)}}
		b, err := l.Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		name := l.Name.String()
		w.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "prefix/" + name, Do: s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}})
		w.put(name, b)
		saved := a.mustSave(1)
		time.Sleep(10 * time.Minute)
		w.agree([]format.ObjectID{saved}, a, w.joined("b"))
		if got := strings.Count(w.log.String(), "was not merged"); got != 1 || !strings.Contains(w.log.String(), "archive class") {
			t.Errorf("told %d times: %s", got, w.log.String())
		}
		if len(w.list(format.InPrefix)) != 1 {
			t.Error("it was deleted")
		}
	})
}
