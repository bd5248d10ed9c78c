package disk

import (
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// Defect 22: what was set aside was neither counted nor ever removed.
func TestSetAsideFilesCountAndGoFirst(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	w := watchCap(t, o)
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 1, 200))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/store/segments/seg-00000777.kv.bad", "/store/index.2.bad"} {
		if err := d.WriteFileAtomic(name, make([]byte, 2<<20)); err != nil {
			t.Fatal(err)
		}
	}
	s = w.of(openTest(t, o))
	if st := s.Stats(); st.SetAsideBytes != 4<<20 || st.Records != 200 {
		t.Errorf("%d bytes set aside, %d records", st.SetAsideBytes, st.Records)
	}
	ns = openNamespace(t, s, "a")
	for chain := 2; s.Stats().SetAsideBytes > 0; chain++ {
		if st := s.Stats(); st.Evicted > 0 {
			t.Fatalf("%d records were evicted, %d bytes are still set aside", st.Evicted, st.SetAsideBytes)
		}
		mustWrite(t, s, chainOf(ns, chain, 10))
	}
	settle(t, s)
	checkAccounting(t, s)
}

// A manifest that was set aside counted as that, and once more among the manifests.
func TestManifestThatWasSetAsideCountsOnce(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	w := watchCap(t, o)
	s := openTest(t, o)
	mustWrite(t, s, chainOf(openNamespace(t, s, "a"), 1, 10))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	manifests, err := d.ReadDir("/store/" + recovery.NamespaceDir)
	if err != nil || len(manifests) != 1 {
		t.Fatal(manifests, err)
	}
	s = openTest(t, o)
	before, small := s.Stats().PhysicalBytes, s.space.Usage().SmallBytes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const bytes = 2 << 20
	aside := filepath.Join("/store", recovery.NamespaceDir, manifests[0].Name()+fsio.AsideSuffix)
	if err := d.WriteFileAtomic(aside, make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	s = w.of(openTest(t, o))
	if st := s.Stats(); st.SetAsideBytes != bytes || st.PhysicalBytes != before+bytes {
		t.Errorf("%d bytes set aside, %d more than before; want %d", st.SetAsideBytes, st.PhysicalBytes-before, bytes)
	}
	ns := openNamespace(t, s, "a")
	for chain := 2; s.Stats().SetAsideBytes > 0; chain++ {
		mustWrite(t, s, chainOf(ns, chain, 10))
	}
	s.reclaim.Measure(true)
	if n := s.space.Usage().SmallBytes; n != small {
		t.Errorf("%d bytes of manifests and other small files, %d before", n, small)
	}
}

// blindDisk is a memory disk whose directories cannot be listed while blind is set.
type blindDisk struct {
	*memDisk
	blind atomic.Bool
}

func (d *blindDisk) ReadDir(path string) ([]fs.DirEntry, error) {
	if d.blind.Load() {
		return nil, &fs.PathError{Op: "list", Path: path, Err: unix.EIO}
	}
	return d.memDisk.ReadDir(path)
}

// What was set aside took the place of what had been set aside before, where the disk did not tell
// that there was such a file.
func TestSettingAsideReplacesNothing(t *testing.T) {
	d := &blindDisk{memDisk: newMemDisk()}
	o := memOptions(d.memDisk, newJournalFS())
	o.fs = d
	openTest(t, o)
	const path = "/store/segments/seg-00000777.kv"
	for name, text := range map[string]string{path: "new", path + fsio.AsideSuffix: "old"} {
		if err := d.WriteFileAtomic(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	d.blind.Store(true)
	_ = fsio.SetAside(d, path)
	d.blind.Store(false)
	if b, err := d.ReadFile(path + fsio.AsideSuffix); string(b) != "old" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	_ = fsio.SetAside(d, path)
	for name, want := range map[string]string{path + fsio.AsideSuffix: "old", path + ".2" + fsio.AsideSuffix: "new"} {
		if b, err := d.ReadFile(name); string(b) != want || err != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
