package steward

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

// ringOf is a key file with keys of these letters.
func ringOf(t *testing.T, letters ...byte) *seal.Ring {
	t.Helper()
	var keys []seal.Key
	for _, c := range letters {
		keys = append(keys, seal.Key([]byte(fmt.Sprintf("key %c: one of thirty-two bytes.. ", c))[:seal.KeyBytes]))
	}
	r, err := seal.New(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A node whose key file lacks the key of the newest list leaves the lease to the others. Where nobody has had that key
// for a day it is steward after all, and folds the log without the lists that cannot be read.
func TestNodeWithAnotherKeyIsNotSteward(t *testing.T) {
	for name, before := range map[string]time.Duration{"log": time.Minute, "part": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, s3mem.Options{})
				defer w.end()
				w.ring = ringOf(t, 'a')
				a := w.start("a")
				time.Sleep(time.Minute)
				a.mustSave(1)
				time.Sleep(before)
				a.stop()
				if parts := w.list(format.PartPrefix); len(parts) > 0 != (name == "part") {
					t.Fatalf("%d parts", len(parts))
				}
				w.ring = ringOf(t, 'b')
				b := w.start("b")
				time.Sleep(time.Minute)
				saved := b.mustSave(1)
				time.Sleep(12 * time.Hour)
				if s := b.steward.Stats(); s.Logs > 0 {
					t.Errorf("it wrote the log without the key: %+v", s)
				}
				if text := w.log.String(); !strings.Contains(text, "cannot be steward") || !strings.Contains(text, "add that key") {
					t.Errorf("nobody is told: %s", text)
				}
				time.Sleep(15 * time.Hour)
				if s := b.steward.Stats(); !s.Steward || s.Folds == 0 {
					t.Errorf("a day later: %+v", s)
				}
				if text := w.log.String(); name == "log" && !strings.Contains(text, "passed over") {
					t.Errorf("nobody is told: %s", text)
				}
				w.agree([]format.ObjectID{saved}, b, w.joined("c"))
			})
		})
	}
}

// Keys are changed as the documentation says: at each step any node may be steward, and all know all.
func TestKeysAreChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		var ids []format.ObjectID
		for _, letters := range []string{"a", "ab", "ba", "b"} {
			w.ring = ringOf(t, []byte(letters)...)
			n := w.start(letters)
			time.Sleep(time.Minute)
			ids = append(ids, n.mustSave(1))
			time.Sleep(time.Hour)
			if s := n.steward.Stats(); s.Terms == 0 || s.Merged == 0 {
				t.Errorf("%s: %+v", letters, s)
			}
			if letters != "b" { // what was sealed with the key that was dropped is gone
				w.agree(ids, n, w.joined("joined"))
			}
			n.stop()
		}
	})
}

// A log that cannot be folded is not read again and again.
func TestBlockedFoldWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3mem.Options{})
		defer w.end()
		n := w.node("a")
		tm := &term{s: n.steward}
		if held, err := tm.take(n.ctx); !held || err != nil {
			t.Fatal(held, err)
		}
		if err := n.follower.CatchUp(n.ctx); err != nil {
			t.Fatal(err)
		}
		if err := tm.begin(n.ctx); err != nil {
			t.Fatal(err)
		}
		if err := tm.publish(n.ctx, &format.List{Objects: []format.Object{n.whole(1)}}); err != nil {
			t.Fatal(err)
		}
		name := format.LogName(1).String()
		b := w.get(name)
		b[11] = 0x80 // an unknown flag: a newer program wrote it
		fixHeader(b)
		w.put(name, b)
		gets := func() uint64 {
			before := w.server.Counts().Get
			tm.logRecords = foldRecords
			if err := tm.fold(n.ctx); err != nil {
				t.Fatal(err)
			}
			return w.server.Counts().Get - before
		}
		if first, second := gets(), gets(); first == 0 || second != 0 {
			t.Errorf("%d requests, then %d", first, second)
		}
		if text := w.log.String(); !strings.Contains(text, "upgrade this node") {
			t.Errorf("nobody is told: %s", text)
		}
		time.Sleep(foldAfter)
		if gets() == 0 {
			t.Error("it is not tried again")
		}
	})
}
