package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/pins"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// fill writes new records, enough to have all others evicted.
func fill(t *testing.T, s *Store, ns connector.NamespaceDigest, first int) {
	t.Helper()
	for c := range 50 {
		for _, err := range writeAll(t, s, chainOf(ns, first+c, 20)) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func promptPin(ns connector.NamespaceDigest, records []testRecord) []pins.Pin {
	return []pins.Pin{{Namespace: ns, Shards: []connector.Shard{0}, Keys: keysOf(records)}}
}

// What is pinned stays, over saves of many times the cap and a restart, and no longer than its pins.
func TestPinnedRecordsAreNotEvicted(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, testOptions(dir))
	ns, other := openNamespace(t, s, "m"), openNamespace(t, s, "other")
	prompt, whole, loose := chainOf(ns, 1, 40), chainOf(other, 2, 20), chainOf(ns, 3, 20)
	mustWrite(t, s, prompt)
	mustWrite(t, s, whole)
	mustWrite(t, s, loose)
	first, err := s.Pins().Add(t.Context(), promptPin(ns, prompt), time.Hour, false)
	if err != nil || len(first) != 1 || first[0].Records != 40 || first[0].Bytes != 40*testPayload {
		t.Fatalf("%+v, %v", first, err)
	}
	if _, err := s.Pins().Add(t.Context(), []pins.Pin{{Namespace: other}}, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	half, err := s.Pins().Add(t.Context(), promptPin(ns, prompt[:20]), time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Pinned != 60 || st.PinnedBytes != 60*testPayload {
		t.Errorf("%d records of %d bytes are pinned", st.Pinned, st.PinnedBytes)
	}
	fill(t, s, ns, 100)
	mustRead(t, s, prompt)
	mustRead(t, s, whole)
	if isPresent(s, loose[0].ID) || s.Stats().Evicted == 0 {
		t.Fatal("nothing is evicted")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, testOptions(dir))
	openNamespace(t, s, "m")
	openNamespace(t, s, "other")
	if st := s.Stats(); st.Pinned != 60 {
		t.Errorf("%d records are pinned after a restart", st.Pinned)
	}
	fill(t, s, ns, 200)
	mustRead(t, s, prompt)
	mustRead(t, s, whole)
	// Another pin holds the first twenty.
	if err := s.Pins().Remove(t.Context(), first[0].ID); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Pinned != 40 || st.PinnedBytes != 40*testPayload {
		t.Errorf("%d records are pinned", st.Pinned)
	}
	fill(t, s, ns, 300)
	mustRead(t, s, prompt[:20])
	if isPresent(s, prompt[39].ID) {
		t.Error("a record whose pin is gone stays")
	}
	if err := s.Pins().Remove(t.Context(), half[0].ID, first[0].ID); err != nil {
		t.Error(err)
	}
	if err := s.Pins().Remove(t.Context(), half[0].ID); !errors.Is(err, pins.ErrUnknown) {
		t.Error(err)
	}
	mustBalance(t, s)
	// A removal takes what is pinned, too.
	if r, err := s.Purge(t.Context(), other, purgeWait); err != nil || r.Removed != 20 || r.Left != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if st := s.Stats(); st.Pinned != 0 || st.PinnedBytes != 0 || st.PinnedGivenUp != 0 {
		t.Errorf("%+v", st)
	}
}

func TestPinsEndInTime(t *testing.T) {
	var ahead atomic.Int64
	o := testOptions(t.TempDir())
	o.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	if _, err := s.Pins().Add(t.Context(), promptPin(ns, records), 24*time.Hour, false); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(25 * time.Hour))
	if _, err := s.Pins().Add(t.Context(), promptPin(ns, records[:1]), time.Hour, false); err != nil { // wakes it
		t.Fatal(err)
	}
	wait.For(t, "the end of a pin", func() bool { return s.Stats().Pinned == 1 && len(s.Pins().List()) == 1 })
}

// Pins can't stop saves: they have a bound, and what no bound covers gives way.
func TestPinsLeaveRoom(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	fill(t, s, ns, 1)
	before := s.Stats()
	if _, err := s.Pins().Add(t.Context(), []pins.Pin{{Namespace: ns}}, time.Hour, false); !errors.Is(err, pins.ErrFull) {
		t.Fatalf("%v", err)
	}
	if st := s.Stats(); st.Pinned != 0 || before.Records == 0 {
		t.Errorf("%d records are pinned", st.Pinned)
	}
	if _, err := s.Pins().Add(t.Context(), promptPin(ns, chainOf(ns, 999, 5)), time.Hour, false); !errors.Is(err, pins.ErrNothing) {
		t.Errorf("%v", err)
	}
	if _, err := s.Pins().Add(t.Context(), promptPin(ns, chainOf(ns, 10, 5)), pins.MaxTime+1, false); err == nil {
		t.Error("a pin without end")
	}
	// Every segment has some pinned record, and saves of another size need a segment.
	var all []pins.Pin
	for c := range 50 {
		records := chainOf(ns, 1+c, 20)
		for i := 0; i < len(records); i += 3 {
			if isPresent(s, records[i].ID) {
				all = append(all, promptPin(ns, records[i:i+1])...)
			}
		}
	}
	if _, err := s.Pins().Add(t.Context(), all, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	pinned, st := s.Stats().Pinned, s.Stats()                   // of some that were found the slots may have been freed meanwhile
	for size := 5; size < 10 && st.PinnedGivenUp == 0; size++ { // the first may get a segment without pins
		large := chainOf(openNamespace(t, s, fmt.Sprint("large", size)), 1, 1)
		large[0].Bytes = size * testPayload
		mustWrite(t, s, large)
		mustRead(t, s, large)
		st = s.Stats()
	}
	if st.PinnedGivenUp == 0 || st.Pinned+int64(st.PinnedGivenUp) != pinned || st.PinnedBytes != st.Pinned*testPayload {
		t.Errorf("%d of %d are pinned, %d went", st.Pinned, pinned, st.PinnedGivenUp)
	}
	mustBalance(t, s)
}

// A damaged file of pins costs the pins, and nothing else.
func TestADamagedFileOfPinsCostsNoData(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, testOptions(dir))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	if _, err := s.Pins().Add(t.Context(), promptPin(ns, records), time.Hour, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, pins.FileName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"flipped": func() error { return flipBit(path, int64(len(good)-20), 3) },
		"cut":     func() error { return os.Truncate(path, int64(len(good)/2)) },
		"empty":   func() error { return os.Truncate(path, 0) },
		"huge":    func() error { return os.Truncate(path, 1<<40) },
	} {
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		s := openTest(t, testOptions(dir))
		openNamespace(t, s, "m")
		mustRead(t, s, records)
		if st := s.Stats(); !st.PinsLost || st.Pinned != 0 {
			t.Errorf("%s: %d are pinned, lost %v", name, st.Pinned, st.PinsLost)
		}
		if _, err := s.Pins().Add(t.Context(), promptPin(ns, records), time.Hour, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// After a lost journal a record is pinned as soon as its header is read, and not only when all are: saves evict meanwhile.
func TestPinsHoldWhatARebuildHasFound(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 80)
	o.PinMaxPercent = MaxPinPercent
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ns := openNamespace(t, s, "a")
	awaitRebuild(t, s)
	var prompt []testRecord
	for _, r := range records {
		if r.ID.Namespace == ns && r.ID.Shard == 0 {
			prompt = append(prompt, r)
		}
	}
	added, err := s.Pins().Add(t.Context(), append(promptPin(ns, prompt), pins.Pin{Namespace: ns}), time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{recovery.JournalDir, "index.snap"} {
		if err := os.RemoveAll(filepath.Join(o.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	segments, err := filepath.Glob(filepath.Join(o.Dir, recovery.SegmentDir, "*"+segment.Suffix))
	if err != nil || len(segments) < 4 {
		t.Fatal(segments, err)
	}
	slow := &halfHeldFS{held: segments[len(segments)/2:], release: make(chan struct{})}
	o.fs = slow
	if s, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() { close(slow.release) })
	t.Cleanup(func() { goOn(); _ = s.Close() })
	pinned := func() (pinned, there int64) { return s.Stats().Pinned, recordsIn(s, ns) }
	wait.For(t, "what was found is pinned", func() bool {
		pinned, there := pinned()
		return pinned == there && s.rebuild.State().SegmentsDone >= int64(len(segments)/2)
	})
	if _, there := pinned(); there == 0 || !s.rebuild.Running() {
		t.Errorf("%d records are found, running %v", there, s.rebuild.Running())
	}
	// A pin that ends meanwhile keeps nothing that is found later.
	if err := s.Pins().Remove(t.Context(), added[0].ID, added[1].ID); err != nil {
		t.Fatal(err)
	}
	goOn()
	awaitRebuild(t, s)
	if pinned, there := pinned(); pinned != 0 || there == 0 {
		t.Errorf("%d of %d records are pinned, and there is no pin", pinned, there)
	}
}

// halfHeldFS holds reads of some segments up, but for the first, which an opening needs.
type halfHeldFS struct {
	fsio.OS
	held    []string
	release chan struct{}
}

func (f *halfHeldFS) OpenFile(path string, create, direct bool) (fsio.File, error) {
	file, err := f.OS.OpenFile(path, create, direct)
	if err != nil || !slices.Contains(f.held, path) {
		return file, err
	}
	return &halfHeldFile{File: file, fs: f}, nil
}

type halfHeldFile struct {
	fsio.File
	fs    *halfHeldFS
	reads atomic.Int64
}

func (f *halfHeldFile) ReadVec(a, b []byte, offset int64) error {
	if f.reads.Add(1) > 1 {
		<-f.fs.release
	}
	return f.File.ReadVec(a, b, offset)
}

// recordsIn is how many records a namespace has.
func recordsIn(s *Store, ns connector.NamespaceDigest) int64 {
	for _, c := range s.Contents() {
		if c.Digest == ns {
			return c.Records
		}
	}
	return 0
}
