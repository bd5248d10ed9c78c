package disk

import (
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// twoDisks is a memory disk that holds the segments alone: all else lies in a file system of
// its own.
type twoDisks struct {
	*memDisk
	own fsio.Room
}

func (d *twoDisks) Room(path string) (fsio.Room, error) {
	if strings.HasPrefix(path, "/store/"+recovery.SegmentDir) {
		room, err := d.memDisk.Room(path)
		room.Device = 7
		return room, err
	}
	return d.own, nil
}

// onTwoDisks opens a store whose segments have a file system of 128 MiB.
func onTwoDisks(t *testing.T, own fsio.Room, change func(*Options)) (*twoDisks, *Store) {
	t.Helper()
	d := &twoDisks{memDisk: newMemDisk(), own: own}
	d.total = 128 << 20
	o := memOptions(d.memDisk, newJournalFS())
	o.fs, o.MaxBytes, o.MinFreeBytes = d, 64<<20, 32<<20
	change(&o)
	s := openTest(t, o)
	if o.MaxBytes == 0 {
		o.MaxBytes = s.Stats().MaxBytes
	}
	return d, watchCap(t, o).of(s)
}

// Segments on a mount of their own fill that, whatever the directory's has.
func TestMinFreeIsThatOfTheSegmentsFileSystem(t *testing.T) {
	t.Parallel()
	d, s := onTwoDisks(t, fsio.Room{TotalBytes: 1 << 40, FreeBytes: 1 << 39}, func(*Options) {})
	ns := openNamespace(t, s, "a")
	d.fill(70 << 20)
	s.reclaim.Measure(false)
	for chain := range 100 {
		for i, err := range writeAll(t, s, chainOf(ns, chain, 20)) {
			if err != nil {
				t.Fatalf("chain %d, record %d: %v", chain, i, err)
			}
		}
		if room, _ := d.memDisk.Room("/"); room.FreeBytes < s.opts.MinFreeBytes {
			t.Fatalf("%d bytes are free, %d must be", room.FreeBytes, s.opts.MinFreeBytes)
		}
	}
	if st := s.Stats(); st.FileSystemBytes != d.total || st.Evicted == 0 {
		t.Errorf("file system of %d bytes, %d evicted", st.FileSystemBytes, st.Evicted)
	}
	// Others take more: segments are given back.
	before := s.Stats().Segments
	d.fill(80 << 20)
	for range 10_000 {
		if room, _ := d.memDisk.Room("/"); room.FreeBytes >= s.opts.MinFreeBytes {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if after := s.Stats().Segments; after >= before {
		t.Errorf("%d of %d segments are left", after, before)
	}
	settle(t, s)
	checkAccounting(t, s)
}

// A small and full file system of the directory keeps no segment from a large one.
func TestFullDirectoryCostsNoSegment(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*Options){
		"size":    func(*Options) {},
		"default": func(o *Options) { o.MaxBytes, o.MinFreeBytes = 0, 0 },
		"percent": func(o *Options) { o.MinFreeBytes, o.MinFreePercent = 0, 25 },
	} {
		_, s := onTwoDisks(t, fsio.Room{TotalBytes: 32 << 20, FreeBytes: 16 << 20}, change)
		ns := openNamespace(t, s, "a")
		mustWrite(t, s, ofSize(ns, 1, 40, 1<<20))
		s.reclaim.Measure(false)
		st := s.Stats()
		if st.MinFreeBytes != 32<<20 || st.Records != 40 || st.LimitedBy == LimitedByFree {
			t.Errorf("%s: %d bytes stay free, %d of 40 records, limited by %q", what, st.MinFreeBytes, st.Records, st.LimitedBy)
		}
		if what == "default" && st.MaxBytes < 100<<20 {
			t.Errorf("the cap is %d bytes of a file system of 128 MiB", st.MaxBytes)
		}
	}
}

// A snapshot lies in the directory, and leaves the space there that must stay free.
func TestSnapshotLeavesTheDirectoryItsSpace(t *testing.T) {
	for _, c := range []struct {
		free int64
		want recovery.Recovery
	}{{6 << 20, recovery.RecoveredJournal}, {16 << 20, recovery.RecoveredSnapshot}} {
		d, s := onTwoDisks(t, fsio.Room{TotalBytes: 32 << 20, FreeBytes: c.free}, func(*Options) {})
		records := chainOf(openNamespace(t, s, "a"), 1, 20)
		mustWrite(t, s, records)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again := openTest(t, s.opts)
		if again.state.Recovered != c.want {
			t.Errorf("with %d of %d bytes free: recovered from %v, want %v", c.free, d.own.TotalBytes, again.state.Recovered, c.want)
		}
		openNamespace(t, again, "a")
		mustRead(t, again, records)
	}
}
