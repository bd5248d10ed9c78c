package fsck

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

func testRing(t *testing.T, first byte) *seal.Ring {
	t.Helper()
	r, err := seal.New(seal.Key{first, 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestABucketInOrder(t *testing.T) {
	for name, ring := range map[string]*seal.Ring{"plain": nil, "sealed": testRing(t, 1)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, ring, func(t *testing.T, w *world) {
				for range 5 {
					w.listed()
				}
				leaving, waiting := w.listed(), w.object()
				w.log(format.List{Removed: []format.Removal{{Object: leaving.ID, When: w.now(), Cause: format.CauseCap}}})
				w.write(&format.List{Name: format.InName(w.writer, 1), Objects: []format.Object{waiting}})
				time.Sleep(2 * time.Hour)
				w.object() // its writer is about to tell
				var done, total int64
				r := w.check(func(o *Options) { o.Progress = func(d, n int64) { done, total = d, n } })
				w.want(r, nil)
				if !r.Clean() || r.Objects != 8 || r.Present != 5 || r.Leaving != 1 || r.Waiting != 1 || r.Young != 1 ||
					r.Records != 6*perObject || r.Lists["log"] != 7 || r.Lists["in"] != 1 || r.Bytes == 0 || r.RecordBytes == 0 {
					t.Errorf("%+v", r)
				}
				if done != 14 || total != 14 {
					t.Errorf("progress ends at %d of %d", done, total)
				}
				if r := w.check(func(o *Options) { o.Payload = false }); !r.Clean() || r.Records != 0 {
					t.Errorf("without payloads: %+v", r)
				}
			})
		})
	}
}

// damage does all that can be wrong, and returns what is to be found.
func damage(w *world) (problems map[string]Verdict, orphan, missing, short, flipped format.Object) {
	orphan = w.object()
	badOrphan := w.object()
	w.change(name(badOrphan), -1)
	time.Sleep(2 * time.Hour)
	w.listed()
	missing, short, flipped = w.listed(), w.listed(), w.listed()
	w.remove(name(missing))
	w.put(name(short), w.get(name(short))[:20000])
	w.change(name(flipped), 3*format.Unit+100)
	untold := w.object() // in a list that waits, and gone
	w.write(&format.List{Name: format.InName(w.writer, 100), Objects: []format.Object{untold}})
	w.remove(name(untold))
	problems = map[string]Verdict{
		name(orphan): Orphan, name(badOrphan): Damaged, name(missing): Missing, name(short): WrongSize, name(flipped): Damaged,
		name(untold): Missing, "kv1/readme": Foreign,
	}
	w.put("kv1/readme", []byte("hello"))
	damaged, newer, foreign := format.InName(w.writer, 101).String(), format.InName(w.writer, 102).String(), format.InName(w.writer, 103).String()
	for n := range uint64(3) {
		w.write(&format.List{Name: format.InName(w.writer, 101+n), Objects: []format.Object{orphan}})
	}
	w.change(damaged, 50)
	b := w.get(newer)
	b[11] |= 2 // a flag that nobody knows yet
	reseal(b)
	w.put(newer, b)
	b = w.get(foreign)
	b[16] ^= 1 // of the bucket's id
	reseal(b)
	w.put(foreign, b)
	problems[damaged], problems[newer], problems[foreign] = Damaged, Newer, Foreign
	w.log(format.List{})
	w.remove(format.LogName(w.last).String())
	problems[format.LogName(w.last).String()] = Gap
	w.listed()
	return problems, orphan, missing, short, flipped
}

// reseal makes a list's checksums right.
func reseal(b []byte) {
	binary.LittleEndian.PutUint64(b[104:], xxh3.Hash(b[:104]))
	sum := format.SumOf(b[:len(b)-16])
	copy(b[len(b)-16:], sum[:])
}

func TestAllThatCanBeWrongIsFound(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		problems, _, _, _, _ := damage(w)
		r := w.check(nil)
		w.want(r, problems)
		if r.Clean() || len(r.Repaired) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestRepair(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		problems, orphan, missing, short, flipped := damage(w)
		r := w.check(func(o *Options) { o.Outbox = w })
		w.want(r, problems)
		if w.flushed != 1 || len(w.list.Objects) != 1 || w.list.Objects[0].ID != orphan.ID || len(w.list.Objects[0].Records) != perObject {
			t.Errorf("%d lists adopt %+v", w.flushed, w.list.Objects)
		}
		lost := map[format.ObjectID]format.Cause{missing.ID: format.CauseLost, short.ID: format.CauseDamaged, flipped.ID: format.CauseDamaged}
		for _, l := range w.list.Lost {
			if want, there := lost[l.Object]; there && want != l.Cause {
				t.Errorf("%v is reported as %v", l.Object, l.Cause)
			}
			delete(lost, l.Object)
		}
		if len(lost) != 0 || len(w.list.Lost) != 4 || len(r.Repaired) != 5 {
			t.Errorf("not reported: %v; reported: %v; repaired: %q", lost, w.list.Lost, r.Repaired)
		}
		r = w.check(nil)
		if r.Problems[Orphan] != 0 || r.Waiting != 1 {
			t.Errorf("after the repair: %+v", r)
		}
	})
}

func TestHeadsArePutRight(t *testing.T) {
	part := func(w *world) format.Part {
		l := &format.List{Name: format.PartName(1, 3, format.NewObjectID(w.writer, 1)), Objects: []format.Object{w.object()}}
		w.write(l)
		b := w.get(l.Name.String())
		return format.Part{Name: l.Name, Bytes: int64(len(b)), Sum: format.SumOf(b), Records: perObject}
	}
	head := func(w *world, parts ...format.Part) {
		b, err := format.Head{Bucket: w.id, Generation: 1, Parts: parts, Last: 3, IntervalMS: 1000}.Encode()
		w.must(err)
		w.put(format.HeadFile, b)
	}
	for name, c := range map[string]struct {
		make  func(w *world) (found string)
		found Verdict
		again bool
	}{
		"in order": {func(w *world) string { head(w, part(w)); return "" }, "", false},
		"missing":  {func(w *world) string { part(w); return format.HeadFile }, Missing, true},
		"damaged": {func(w *world) string {
			head(w, part(w))
			w.change(format.HeadFile, 20)
			return format.HeadFile
		}, Damaged, true},
		"without its part": {func(w *world) string {
			p := part(w)
			head(w, p)
			w.remove(p.Name.String())
			return p.Name.String()
		}, Missing, true},
		"with another part": {func(w *world) string {
			p := part(w)
			p.Bytes++
			head(w, p)
			return p.Name.String()
		}, WrongSize, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *world) {
				w.last = 3
				found := c.make(w)
				w.listed() // log object 4
				made := false
				r := w.check(func(o *Options) { o.RemakeHead = func(context.Context) error { made = true; return nil } })
				problems := make(map[string]Verdict)
				if c.found != "" {
					problems[found] = c.found
				}
				w.want(r, problems)
				if made != c.again {
					t.Errorf("made again: %v", made)
				}
			})
		})
	}
}

// What the steward deletes while the check runs is not missing.
func TestWhatGoesMeanwhileIsNotMissing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		o := w.listed()
		w.caughtUp = func() {
			w.log(format.List{Removed: []format.Removal{{Object: o.ID, When: w.now(), Cause: format.CauseAge}}})
			w.log(format.List{Deleted: []format.ObjectID{o.ID}})
			w.remove(name(o))
		}
		w.want(w.check(nil), nil)
	})
}

// What comes while the check runs is neither missing nor an orphan.
func TestWhatComesMeanwhileIsInOrder(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		w.listed()
		o := w.options()
		o.CatchUp = func(ctx context.Context) error {
			if w.last == 1 {
				w.listed()
			}
			return w.catchUp(ctx)
		}
		r, err := Check(t.Context(), o)
		w.must(err)
		w.want(r, nil)
		if r.Present != 2 {
			t.Errorf("%+v", r)
		}
	})
}

// A list that says another prefix of a record than its header is damage.
func TestARecordOfAnotherPrefix(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		o := w.objectOf(connector.Key{77})
		w.log(format.List{Objects: []format.Object{o}})
		w.want(w.check(nil), map[string]Verdict{name(o): Damaged})
	})
}

// failing fails reads of an object.
type failing struct {
	bucket.Client
	name string
	err  error
}

func (f *failing) Get(ctx context.Context, name string, from, bytes int64) (*bucket.Body, error) {
	if name == f.name {
		return nil, f.err
	}
	return f.Client.Get(ctx, name, from, bytes)
}

func TestWhatCannotBeReadIsNotDamaged(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		w.listed()
		o := w.listed()
		w.client = &failing{w.bucket, name(o), bucket.ErrUnavailable}
		r := w.check(func(o *Options) { o.Outbox = w })
		if r.Unread != 1 || len(r.Failed) != 1 || len(r.Problems) != 0 || r.Clean() || w.flushed != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWithoutTheRightKey(t *testing.T) {
	ring := testRing(t, 1)
	inBubble(t, ring, func(t *testing.T, w *world) {
		o := w.listed()
		w.must(w.catchUp(t.Context()))
		other := func(r *seal.Ring) func(*Options) {
			return func(opt *Options) {
				opt.Verifier = &Verifier{Client: w.bucket, Bucket: w.id, Opener: record.Opener{Ring: r}}
				opt.Outbox = w
			}
		}
		r := w.check(other(testRing(t, 2)))
		w.want(r, map[string]Verdict{name(o): OtherKey, format.LogName(1).String(): OtherKey})
		if w.flushed != 0 {
			t.Error("what another key has sealed was repaired")
		}
		w.ring = nil
		plain := w.listed()
		r = w.check(other(ring))
		w.want(r, map[string]Verdict{name(plain): Unsealed, format.LogName(2).String(): Unsealed})
	})
}

func TestAnotherBucketIsNotChecked(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		w.id = format.NewBucketID()
		if _, err := Check(t.Context(), w.options()); err == nil {
			t.Error("no error")
		}
		w.remove(format.FormatFile)
		if _, err := Check(t.Context(), w.options()); !errors.Is(err, bucket.ErrMissing) {
			t.Errorf("error %v", err)
		}
	})
}

func TestACheckEndsWithItsContext(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		for range 20 {
			w.listed()
		}
		ctx, cancel := context.WithCancel(t.Context())
		o := w.options()
		o.Parallel = 1
		o.Progress = func(done, _ int64) {
			if done == 25 {
				cancel()
			}
		}
		o.CatchUp = func(ctx context.Context) error { time.Sleep(time.Second); return w.catchUp(ctx) }
		o.Verifier.Client = &slow{w.bucket}
		if _, err := Check(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// slow takes a second for each read.
type slow struct{ bucket.Client }

func (s *slow) Get(ctx context.Context, name string, from, bytes int64) (*bucket.Body, error) {
	time.Sleep(time.Second)
	return s.Client.Get(ctx, name, from, bytes)
}

// The steward asks before it removes what a reader has reported.
func TestVerifyKnowsDamage(t *testing.T) {
	inBubble(t, testRing(t, 1), func(t *testing.T, w *world) {
		v := w.options().Verifier
		whole, gone, flipped := w.object(), w.object(), w.object()
		w.remove(name(gone))
		w.change(name(flipped), 2*format.Unit)
		for o, want := range map[*format.Object]error{&whole: nil, &gone: bucket.ErrMissing, &flipped: format.ErrBad} {
			if err := v.Verify(t.Context(), o); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		v.Opener.Ring = testRing(t, 2)
		if err := v.Verify(t.Context(), &whole); err != nil {
			t.Errorf("of another key: %v", err)
		}
	})
}
