package feed

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/residency"
)

// A snapshot comes in any order; events come with children before their parents.
func TestBlocksFindTheirPlaceInAnyOrder(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	a := chain(false, 1, 2, 3, 4, 5)
	fork := chain(false, 1, 2, 30, 31)[2:]
	lost := chain(false, 7, 8)[1] // its parent comes later
	late := chain(false, 7, 8, 9)
	tell(t, f, hello(1, false), namespace(0, testBlockSize),
		records(0, a[4], fork[1], a[1], lost, a[3], a[0], fork[0], a[2]), snapshotEnd(10),
		records(11, late[2], late[0], chain(true, 1, 2, 3, 4, 5)[4]), heartbeat(16))
	wantKeys(t, x, 1, slices.Concat(keysOf(connector.Scope{}, 1, 2, 3, 4),
		keysOf(connector.Scope{}, 1, 2, 30, 31)[2:], keysOf(connector.Scope{}, 7, 8, 9))...)
	if s := f.Stats(); s.Waiting != 0 || s.Incomplete != 0 || s.State != StateSynced || s.Namespaces != 1 || s.LastSeq != 16 {
		t.Errorf("%+v", s)
	}
}

func TestABlockCountsOnlyWithAllShardsOfFullAttention(t *testing.T) {
	both := chain(false, 1)[0]
	first, second := both[0], both[1]
	window, gone := first, second
	window.Shard = 1 // the other group's shard
	gone.Removed = true
	for name, c := range map[string]struct {
		records []residency.Record
		held    int
	}{
		"one of two":        {[]residency.Record{first}, 0},
		"a window's":        {[]residency.Record{first, window}, 0},
		"both":              {[]residency.Record{first, second}, 1},
		"one gone":          {[]residency.Record{first, second, gone}, 0},
		"gone and back":     {[]residency.Record{first, second, gone, second}, 1},
		"a window's not so": {[]residency.Record{second, window, first}, 1},
	} {
		f, x := newResidency(t, residencyOptions())
		tell(t, f, hello(1, false), namespace(0, testBlockSize), snapshotEnd(0), records(1, c.records))
		if got := len(x.keys(1)); got != c.held {
			t.Errorf("%s: %d blocks", name, got)
		}
	}
}

// Whatever is wrong with a stream, the next connection begins with a snapshot.
func TestBrokenStreamsCostASnapshot(t *testing.T) {
	one := chain(false, 1)[0]
	good := stream(t, hello(2, false), namespace(0, testBlockSize), records(0, one), snapshotEnd(9))
	begin := []part{hello(1, false), namespace(0, testBlockSize), snapshotEnd(5)}
	foreign := slices.Clone(one)
	foreign[0].Namespace = 99
	for name, bad := range map[string][]byte{
		"a gap":                   stream(t, append(begin, records(7, one))...),
		"an unknown namespace":    stream(t, append(begin, records(6, foreign))...),
		"no msgpack":              append(stream(t, begin...), 1, 0, 0, 0, 0xc1),
		"resumed without a cause": stream(t, hello(1, true)),
	} {
		synctest.Test(t, func(t *testing.T) {
			f, x, s := followStore(t, residencyOptions(), bad, good)
			soon()
			wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
			if st := f.Stats(); st.Gaps+st.Malformed != 1 || st.Epoch != 2 || st.State != StateSynced {
				t.Errorf("%s: %+v", name, st)
			}
			if s.queries[1] != "" {
				t.Errorf("%s: asked for %q", name, s.queries[1])
			}
		})
	}
}

// A stream that resumes may give a namespace another number than before. A daemon of the release before, which
// does not know numbers=stream, gives the store's own number, and describes the namespace in each stream too.
func TestAnEndedStreamIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocks := chain(false, 1, 2)
		for i := range blocks[1] {
			blocks[1][i].Namespace = 3
		}
		f, x, s := followStore(t, residencyOptions(),
			stream(t, hello(1, false), namespace(0, testBlockSize), records(0, blocks[0]), snapshotEnd(5),
				func(w *residency.Writer) error { return w.End("stopping", "bye") }),
			stream(t, hello(1, true), namespace(3, testBlockSize), records(6, blocks[1])))
		if st := f.Stats(); st.Connected || !strings.Contains(st.Error, "stopping: bye") {
			t.Errorf("%+v", st)
		}
		soon()
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
		if st := f.Stats(); st.LastSeq != 7 || st.Resumed != 1 || st.Snapshots != 1 || st.Namespaces != 1 || s.queries[1] != "after=5&epoch=1&numbers=stream" {
			t.Errorf("%+v after asking for %q", st, s.queries[1])
		}
	})
}

// A bucket's stream is asked for by its tier, also where it resumes.
func TestAStreamOfTheBucketIsAskedForByItsTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocks := chain(false, 1, 2)
		o := residencyOptions()
		o.Tier = residency.Object
		_, x, s := followStore(t, o,
			stream(t, hello(1, false), namespace(0, testBlockSize), records(0, blocks[0]), snapshotEnd(5)),
			stream(t, hello(1, true), namespace(0, testBlockSize), records(6, blocks[1])))
		soon()
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
		if s.queries[0] != "tier=object" || s.queries[1] != "after=5&epoch=1&numbers=stream&tier=object" {
			t.Errorf("asked for %q", s.queries)
		}
	})
}

// A daemon of an earlier release tells of its disk whatever it is asked for: that is not the bucket's.
func TestADisksStreamIsNotTakenForTheBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scriptedStore{
			streams:     [][]byte{stream(t, hello(1, false), namespace(0, testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5))},
			contentType: residency.ContentType(residency.Disk),
		}
		o := residencyOptions()
		o.Tier, o.Client = residency.Object, &http.Client{Transport: s}
		f, x := newResidency(t, o)
		background(t, f.Run)
		synctest.Wait()
		wantKeys(t, x, 1)
		if st := f.Stats(); st.Connected || !strings.Contains(st.Error, "tells of \"disk\", not of \"object\"") {
			t.Errorf("%+v", st)
		}
	})
}

func TestNamespacesOfAnotherBlockSizeAreIgnoredAndCounted(t *testing.T) {
	f, x := newResidency(t, residencyOptions())
	tell(t, f, hello(1, false), namespace(0, 2*testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5))
	wantKeys(t, x, 1)
	if s := f.Stats(); s.MismatchedBlockSize != 1 || s.IgnoredNamespaces != 1 || s.Namespaces != 0 || s.Snapshots != 1 {
		t.Errorf("%+v", s)
	}
}

// A stream that resumes describes namespaces again: those that are ignored have been counted and logged.
func TestAResumedStreamDoesNotCountIgnoredNamespacesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		o := residencyOptions()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		other, one := namespace(0, 2*testBlockSize), chain(false, 1)[0]
		f, x, _ := followStore(t, o,
			stream(t, hello(1, false), other, records(0, one), snapshotEnd(5)),
			stream(t, hello(1, true), other, records(6, one)),
			stream(t, hello(2, false), other, snapshotEnd(0)))
		soon()
		wantKeys(t, x, 1)
		if s := f.Stats(); s.Snapshots != 2 || s.Resumed != 1 || s.IgnoredNamespaces != 2 || s.MismatchedBlockSize != 2 {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(log.String(), "another block size"); n != 2 {
			t.Errorf("%d lines, want one for each snapshot:\n%s", n, log.String())
		}
	})
}

// Neither one stream nor many that resume it make the router remember namespaces without end.
func TestAStoreCannotDescribeNamespacesWithoutEnd(t *testing.T) {
	numbered := func(number, n uint32) part {
		m := streamManifest(testBlockSize)
		m.Model = strconv.Itoa(int(n))
		namespace := residency.Namespace{Number: number, Digest: m.Digest(), Manifest: m.Canonical()}
		return func(w *residency.Writer) error { return w.Namespace(namespace) }
	}
	for name, ignored := range map[string]bool{"followed": false, "ignored": true} {
		o := residencyOptions()
		o.Holder = func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, !ignored }
		f, _ := newResidency(t, o)
		s := tell(t, f, hello(1, false), numbered(0, 0), snapshotEnd(5))
		if err := s.apply(numbered(0, 1)); !errors.Is(err, residency.ErrMalformed) {
			t.Errorf("%s: one number for two namespaces: %v", name, err)
		}
		f, _ = newResidency(t, o)
		s = tell(t, f, hello(1, false), numbered(0, 0), snapshotEnd(5))
		for n := range uint32(residency.MaxNamespaces - 1) {
			var d connector.NamespaceDigest
			binary.LittleEndian.PutUint32(d[:], n)
			if ignored {
				f.ignored[d] = true
			} else {
				f.views[d] = f.numbers[0]
			}
		}
		resumed := func(parts ...part) error {
			s.r = residency.NewReader(&s.pipe, f.position())
			return s.apply(append([]part{hello(1, true)}, parts...)...)
		}
		if err := resumed(numbered(7, 0)); err != nil {
			t.Errorf("%s: described again: %v", name, err)
		}
		if err := resumed(numbered(0, 0), numbered(1, 1)); !errors.Is(err, residency.ErrMalformed) {
			t.Errorf("%s: one more than there can be: %v", name, err)
		}
	}
}

// A store's blocks outlive its connection for a while, and no longer.
func TestAStoreThatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := residencyOptions()
		o.ForgetAfter = time.Minute
		f, x, s := followStore(t, o, stream(t, hello(1, false), namespace(0, testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5)))
		s.end()
		time.Sleep(time.Minute - time.Second)
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
		soon()
		wantKeys(t, x, 1)
		if s := f.Stats(); s.Connected || s.State != StateConnecting || s.Error == "" {
			t.Errorf("%+v", s)
		}
	})
}

// A machine that has gone says nothing: silence ends a stream.
func TestASilentStoreIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, s := followStore(t, residencyOptions(), stream(t, hello(1, false), namespace(0, testBlockSize), snapshotEnd(5)))
		time.Sleep(34 * time.Second)
		if st := f.Stats(); !st.Connected {
			t.Errorf("too early: %+v", st)
		}
		soon()
		if st := f.Stats(); st.Connected || !strings.Contains(st.Error, "refused") || len(s.queries) < 2 {
			t.Errorf("%+v after %d requests", st, len(s.queries))
		}
	})
}

func TestAStoreThatRefusesIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := residencyOptions()
		o.Client = &http.Client{Transport: answer("too many residency streams")}
		f, _ := newResidency(t, o)
		background(t, f.Run)
		soon()
		if st := f.Stats(); st.Connected || !strings.Contains(st.Error, "too many residency streams") {
			t.Errorf("%+v", st)
		}
	})
}

// A daemon that stops ends each stream as soon as it has begun. One whose stream lasted is asked again soon.
func TestAStoreThatEndsItsStreamsAtOnceIsNotAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var streams [][]byte
		for range 1000 {
			streams = append(streams, stream(t, hello(1, false), snapshotEnd(5), func(w *residency.Writer) error { return w.End("stopping", "bye") }))
		}
		_, _, s := followStore(t, residencyOptions(), streams...)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.requests(); n < 10 || n > 30 {
			t.Errorf("asked %d times in a minute", n)
		}
		s.mu.Lock()
		s.streams = [][]byte{stream(t, hello(1, false), snapshotEnd(5))} // stays open
		s.mu.Unlock()
		time.Sleep(20 * time.Second)
		s.end()
		before := s.requests()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := s.requests() - before; n < 3 {
			t.Errorf("asked %d times in the second after a stream that lasted", n)
		}
	})
}

// Once the feed has ended its holders may belong to someone else.
func TestAnEndedFeedForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scriptedStore{streams: [][]byte{stream(t, hello(1, false), namespace(0, testBlockSize), records(0, chain(false, 1)[0]), snapshotEnd(5))}}
		o := residencyOptions()
		o.Client = &http.Client{Transport: s}
		f, x := newResidency(t, o)
		stop := background(t, f.Run)
		synctest.Wait()
		s.end()
		soon() // the store cannot be reached, and is not forgotten yet
		stop()
		time.Sleep(time.Hour)
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
		f.forget() // as a timer that had fired already
		wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
	})
}

func FuzzResidency(f *testing.F) {
	one := chain(false, 1)[0]
	f.Add(stream(f, hello(1, false), namespace(0, testBlockSize), records(0, one), snapshotEnd(5), records(6, one)))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := residencyOptions()
		o.MaxWaiting = 16
		r, _ := newResidency(t, o)
		s := tell(t, r)
		s.pipe.Write(b)
		_ = s.apply()
		_ = r.Stats()
	})
}
