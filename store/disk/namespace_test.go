package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// slowFS is the file system with atomic writes that wait once they are told to.
type slowFS struct {
	fsio.OS
	hold, began chan struct{}
}

func (f *slowFS) WriteFileAtomic(path string, b []byte) error {
	if filepath.Ext(path) == ".json" {
		close(f.began)
		<-f.hold
	}
	return f.OS.WriteFileAtomic(path, b)
}

// Defect 30: an engine that connects does not wait for a disk that hangs, whether its
// namespace is known or new; only what is saved into a new one does.
func TestOpenNamespaceDoesNotWaitForTheDisk(t *testing.T) {
	f := &slowFS{hold: make(chan struct{}), began: make(chan struct{})}
	s := openTest(t, testOptions(t.TempDir()).WithFS(f, vfs.Default))
	ns := openNamespace(t, s, "first")
	saved := make(chan error, 1)
	go func() { saved <- errors.Join(writeAll(t, s, chainOf(ns, 1, 2))...) }()
	<-f.began // the manifest waits for the disk
	if again := openNamespace(t, s, "first"); again != ns {
		t.Errorf("namespace %d, want %d", again, ns)
	}
	if other := openNamespace(t, s, "second"); other == ns {
		t.Errorf("two namespaces have number %d", ns)
	}
	if n, _ := s.Lookup(ns, []connector.Shard{0}, []connector.Key{{1}}, 0); n != 0 {
		t.Error("found a record that nobody stored")
	}
	close(f.hold)
	if err := <-saved; err != nil {
		t.Error(err)
	}
}

func manifestFiles(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, recovery.NamespaceDir))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Defect 23: engines of more models than there are numbers come and go without saving
// anything. They leave nothing, and the next is served.
func TestNamespacesThatAreNotUsedLeaveNothing(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	for i := range 1<<16 + 100 {
		ns, err := s.OpenNamespace(testManifest(fmt.Sprint("model", i)))
		if err != nil {
			t.Fatalf("namespace %d: %v", i, err)
		}
		s.CloseNamespace(ns)
	}
	if n := s.namespaces.Count(); n != 0 || manifestFiles(t, o.Dir) != 0 {
		t.Errorf("%d namespaces, %d files", n, manifestFiles(t, o.Dir))
	}
	ns := openNamespace(t, s, "used")
	records := chainOf(ns, 1, 3)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if again := openNamespace(t, s, "used"); again != ns {
		t.Errorf("namespace %d, want %d", again, ns)
	}
	mustRead(t, s, records)
}

// dropAll removes the records from a store.
func dropAll(t *testing.T, s *Store, records []testRecord) {
	t.Helper()
	for i := range records {
		found, ok := s.table.Get(internalID(s, records[i].ID), false)
		if !ok {
			t.Fatalf("record %d is not there", i)
		}
		job := &dropJob{removal{ref: found.Ref, seq: found.Seq}, make(chan struct{})}
		s.commits.Push(job)
		<-job.done
	}
}

// Defect 23: namespaces whose records are gone are forgotten when no engine has them open,
// with their files, and stay forgotten after a restart.
func TestNamespacesWithoutRecordsAreForgotten(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	kept, left, open := openNamespace(t, s, "kept"), openNamespace(t, s, "left"), openNamespace(t, s, "open")
	for _, ns := range []connector.NamespaceDigest{kept, left, open} {
		mustWrite(t, s, chainOf(ns, 1, 3))
	}
	dropAll(t, s, chainOf(left, 1, 3))
	dropAll(t, s, chainOf(open, 1, 3))
	s.CloseNamespace(kept)
	s.CloseNamespace(left)
	before := smallBytes(s)
	s.forgetEmpty()
	if n := s.namespaces.Count(); n != 2 || manifestFiles(t, o.Dir) != 2 || smallBytes(s) >= before {
		t.Errorf("%d namespaces, %d files, %d bytes of %d", n, manifestFiles(t, o.Dir), smallBytes(s), before)
	}
	known := func(ns connector.NamespaceDigest) bool {
		_, known := s.namespaces.Number(ns)
		return known
	}
	if known(left) || !known(kept) || !known(open) {
		t.Error("not the one without records and engines")
	}
	mustWrite(t, s, chainOf(open, 2, 3))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if n := s.namespaces.Count(); n != 2 {
		t.Errorf("%d namespaces after a restart, want 2", n)
	}
	mustRead(t, s, chainOf(kept, 1, 3))
	mustRead(t, s, chainOf(open, 2, 3))
	again := openNamespace(t, s, "left")
	mustWrite(t, s, chainOf(again, 1, 3))
	mustRead(t, s, chainOf(again, 1, 3))
}

// smallBytes is what counts for manifests and other small files.
func smallBytes(s *Store) int64 {
	return s.space.Usage().SmallBytes
}

// Manifests never take more than their part of the cap.
func TestManifestsAreBounded(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	o.MaxBytes = MinMaxBytes
	s := openTest(t, o)
	limit := o.MaxBytes / 8
	refused := 0
	for i := range int(limit/fsio.Align) + 10 {
		ns := openNamespace(t, s, fmt.Sprint("model", i))
		if err := writeAll(t, s, chainOf(ns, i, 1))[0]; errors.Is(err, store.ErrTooLarge) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := int64(manifestFiles(t, o.Dir)) * fsio.Align; refused == 0 || n > limit {
		t.Errorf("%d refused, manifests of %d bytes, limit %d", refused, n, limit)
	}
}

// checkPayload registers a payload size for a moment.
func checkPayload(s *Store, ns connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	err := s.HoldPayload(ns, shard, bytes)
	if err == nil {
		s.ReleasePayload(ns, shard)
	}
	return err
}

// Defect 14: an engine whose blocks have another size than the records that are there is
// told so, and is served when those records are gone.
func TestPayloadSizeIsFreeWhenItsRecordsAreGone(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	if err := checkPayload(s, ns, 0, 1000); err != nil {
		t.Errorf("no record yet: %v", err)
	}
	records := chainOf(ns, 1, 3)
	mustWrite(t, s, records)
	if err := checkPayload(s, ns, 0, testPayload); err != nil {
		t.Error(err)
	}
	err := checkPayload(s, ns, 0, 1000)
	var size *store.PayloadSizeError
	if !errors.Is(err, store.ErrPayloadSize) || !errors.Is(err, store.ErrInvalid) || !errors.As(err, &size) || size.Bytes != 1000 || size.Stored != testPayload {
		t.Errorf("%v", err)
	}
	if err := checkPayload(s, ns, 1, 1000); err != nil {
		t.Errorf("another shard: %v", err)
	}
	other := chainOf(ns, 2, 3)
	for i := range other {
		other[i].Bytes = 1000
	}
	if err := writeAll(t, s, other)[0]; !errors.Is(err, store.ErrPayloadSize) {
		t.Errorf("%v", err)
	}
	dropAll(t, s, records)
	if err := checkPayload(s, ns, 0, 1000); err != nil {
		t.Errorf("its records are gone: %v", err)
	}
	mustWrite(t, s, other)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, s.opts)
	if ns := openNamespace(t, s, "m"); s.PayloadBytes(ns, 0) != 1000 {
		t.Errorf("size %d after a restart", s.PayloadBytes(ns, 0))
	}
	mustRead(t, s, other)
}

func TestContentsAreCountedByNamespace(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	want := map[connector.NamespaceDigest]int{}
	for n, model := range []string{"a", "b"} {
		ns := openNamespace(t, s, model)
		want[ns] = n + 3
		mustWrite(t, s, chainOf(ns, 1, n+3))
	}
	for _, c := range s.Contents() {
		if int(c.Records) != want[c.Digest] || c.Bytes != c.Records*testPayload || len(c.Manifest) == 0 {
			t.Errorf("%v: %d records, %d bytes, want %d records", c.Digest, c.Records, c.Bytes, want[c.Digest])
		}
		delete(want, c.Digest)
	}
	if len(want) > 0 {
		t.Errorf("not counted: %v", want)
	}
}
