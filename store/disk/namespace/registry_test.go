package namespace_test

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/record"
)

const dir = "/manifests"

// rig is a registry on small files in memory.
type rig struct {
	*testing.T
	*namespace.Registry
	files   *files
	report  *report.Report
	claimed int // bytes
	claim   error
	reused  int
}

// files are small files in memory. write is called before each is written.
type files struct {
	fsio.FS
	write func(path string) error

	mu   sync.Mutex
	text map[string][]byte
}

func (f *files) ReadFile(path string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text, ok := f.text[path]; ok {
		return text, nil
	}
	return nil, os.ErrNotExist
}

func (f *files) WriteFileAtomic(path string, text []byte) error {
	if err := f.write(path); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text[path] = slices.Clone(text)
	return nil
}

func (f *files) Remove(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.text[path]; !ok {
		return os.ErrNotExist
	}
	delete(f.text, path)
	return nil
}

type entry struct {
	fs.DirEntry
	name string
}

func (e entry) Name() string { return e.name }

func (f *files) ReadDir(string) (out []fs.DirEntry, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.text {
		out = append(out, entry{name: filepath.Base(path)})
	}
	return out, nil
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, files: &files{text: make(map[string][]byte), write: func(string) error { return nil }}}
	r.open()
	return r
}

// open makes another registry, as the next start does.
func (r *rig) open() {
	var mu sync.Mutex
	r.report = &report.Report{Logger: slog.New(slog.DiscardHandler)}
	r.Registry = namespace.New(namespace.Options{
		FS: r.files, Dir: dir, Report: r.report, Reused: func() { r.reused++ },
		Claim: func(bytes int) error {
			mu.Lock()
			defer mu.Unlock()
			if r.claim == nil {
				r.claimed += bytes
			}
			return r.claim
		},
		Unclaim: func(bytes int) { mu.Lock(); r.claimed -= bytes; mu.Unlock() },
	})
}

func (r *rig) openModel(name string) (connector.NamespaceDigest, uint16) {
	r.Helper()
	ns, err := r.Open(manifests.Model(name))
	if err != nil {
		r.Fatal(err)
	}
	id, known := r.Number(ns)
	if !known || r.Digest(id) != ns {
		r.Fatalf("namespace %v has number %d, %v", ns, id, known)
	}
	return ns, id
}

// save does what the first record of a namespace needs, and returns what the journal is to note.
func (r *rig) save(b *journal.Batch, id uint16, shard connector.Shard, bytes int) {
	r.Helper()
	g := index.Group{Namespace: id, Shard: shard}
	if err := errors.Join(r.CheckSize(g, bytes), r.Keep(id), r.Put(b, g, uint32(bytes))); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) openJournal() *journal.Journal {
	r.Helper()
	j, err := journal.Open(journal.Options{Dir: "/j", FS: vfs.NewMem(), CacheBytes: 1 << 20, MemTableBytes: journal.MinMemTableBytes,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := j.Close(); err != nil {
			r.Error(err)
		}
	})
	return j
}

func (r *rig) wantsTidy() bool {
	select {
	case <-r.Tidy():
		return true
	default:
		return false
	}
}

// Writers of a namespace wait for its manifest, which is written once, in room that was claimed;
// nobody else waits for it, and it is not forgotten meanwhile.
func TestManifestIsAFileBeforeTheFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ns, id := r.openModel("m")
		if err := r.CheckSize(index.Group{Namespace: id}, 100); err != nil {
			t.Fatal(err)
		}
		writes := 0
		r.files.write = func(path string) error {
			writes++
			if r.claimed == 0 || path != filepath.Join(dir, ns.String()+".json") {
				t.Errorf("manifest in %s, %d bytes are claimed", path, r.claimed)
			}
			synctest.Wait()                  // for the other writers
			other, _ := r.openModel("other") // an engine that connects
			r.Leave(other)
			if r.Leave(ns); r.Forget(r.Forgetting(id)) {
				t.Error("a namespace is forgotten while its manifest is written")
			}
			r.openModel("m")
			return nil
		}
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				if err := r.Keep(id); err != nil {
					t.Error(err)
				}
				if text, err := r.files.ReadFile(filepath.Join(dir, ns.String()+".json")); err != nil || sha256.Sum256(text) != ns || r.claimed != len(text) {
					t.Errorf("%q, %v, %d bytes are claimed", text, err, r.claimed)
				}
			})
		}
		writers.Wait()
		if writes != 1 {
			t.Errorf("it was written %d times", writes)
		}
		if r.Forget(r.Forgetting(id)) {
			t.Error("a namespace is forgotten that an engine has open")
		}
		if err := r.Keep(id + 100); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("manifest of a number that is nobody's: %v", err)
		}
	})
}

func TestManifestThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	r := newRig(t)
	_, id := r.openModel("m")
	r.files.write = func(string) error { return fs.ErrPermission }
	if err := r.Keep(id); !errors.Is(err, store.ErrIO) || !errors.Is(err, fs.ErrPermission) || r.claimed != 0 || r.wantsTidy() {
		t.Errorf("%v, %d bytes are claimed", err, r.claimed)
	}
	r.files.write = func(string) error { return nil }
	r.claim = store.ErrTooLarge
	if err := r.Keep(id); !errors.Is(err, store.ErrTooLarge) || len(r.files.text) != 0 || !r.wantsTidy() {
		t.Errorf("no room: %v, %d files; room is to be made by those that are not used", err, len(r.files.text))
	}
	r.claim = nil
	if err := r.Keep(id); err != nil || len(r.files.text) != 1 || r.claimed == 0 {
		t.Errorf("%v, %d files, %d bytes are claimed", err, len(r.files.text), r.claimed)
	}
}

// A namespace without records is forgotten, unless anything came between the count of its records
// and that.
func TestNamespaceIsForgottenOnlyIfNothingHappenedMeanwhile(t *testing.T) {
	group := index.Group{}
	for _, c := range []struct {
		name      string
		meanwhile func(r *rig, b *journal.Batch)
		forgotten bool
	}{
		{"nothing", func(*rig, *journal.Batch) {}, true},
		{"an engine came", func(r *rig, _ *journal.Batch) { r.openModel("m") }, false},
		{"an engine came and went", func(r *rig, _ *journal.Batch) { ns, _ := r.openModel("m"); r.Leave(ns) }, false},
		{"a record", func(r *rig, b *journal.Batch) {
			if err := r.Put(b, group, 100); err != nil {
				r.Error(err)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			j := r.openJournal()
			b := j.NewBatch()
			ns, id := r.openModel("m")
			r.save(b, id, 0, 100)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			if len(r.Unopened()) != 0 {
				t.Error("a namespace that is open is to be forgotten")
			}
			r.Leave(ns)
			f := r.Unopened()
			if len(f) != 1 || f[0].ID != id {
				t.Fatalf("to be forgotten: %v", f)
			}
			c.meanwhile(r, b)
			if got := r.Forget(f[0]); got != c.forgotten {
				t.Fatalf("forgotten: %v", got)
			}
			if _, known := r.Number(ns); known == c.forgotten || r.Known()[id] == c.forgotten || r.Digest(id) != ns {
				t.Errorf("known: %v, its events are of %v", known, r.Digest(id))
			}
			if list := r.List(); len(list) != 1 || list[0].Digest != ns || list[0].Forgotten != c.forgotten {
				t.Errorf("listed: %+v", list)
			}
			if !c.forgotten {
				return
			}
			f[0].DeleteFrom(b)
			r.Forgotten(f[0])
			if err := b.Commit(); err != nil || len(r.files.text) != 0 || r.claimed != 0 || r.Count() != 0 {
				t.Errorf("%v, %d files and %d bytes are left", err, len(r.files.text), r.claimed)
			}
			if err := errors.Join(r.Load(j), j.Sizes(func(uint16, connector.Shard, uint32) { t.Error("a size is left") })); err != nil || r.Count() != 0 {
				t.Errorf("%v; the journal has %d namespaces", err, r.Count())
			}
			if r.Forget(f[0]) {
				t.Error("it is forgotten twice")
			}
		})
	}
}

func digest(n int) (ns connector.NamespaceDigest) {
	binary.LittleEndian.PutUint32(ns[:], uint32(n)+1)
	return ns
}

// A number that events may name goes to another namespace only when there is no other one, and
// subscribers are told; also where records that are found bring the namespace.
func TestNumbersAreGivenOutAgain(t *testing.T) {
	const all = 1 << 16
	r := newRig(t)
	j := r.openJournal()
	b := j.NewBatch()
	if err := errors.Join(b.PutNamespace(journal.Namespace{ID: 5, Digest: digest(all - 2)}), b.Commit(), r.Load(j)); err != nil {
		t.Fatal(err)
	}
	ns, id := r.openModel("comes and goes")
	for i := range all - 2 { // five of them get the numbers before the first
		if _, err := r.Find(digest(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Find(digest(all)); !errors.Is(err, store.ErrBusy) {
		t.Errorf("one namespace too many: %v", err)
	}
	if _, err := r.Open(manifests.Model("m")); !errors.Is(err, store.ErrBusy) || !r.wantsTidy() {
		t.Errorf("one namespace too many: %v", err)
	}
	for i := range 2 {
		old, _ := r.Number(digest(100 + i))
		f := r.Forgetting(old)
		if !r.Forget(f) {
			t.Fatal("it is not forgotten")
		}
		r.Forgotten(f)
	}
	r.Leave(ns) // it had no records, so that no event names it
	if got, err := r.Find(digest(all)); got != id || err != nil || r.reused != 0 {
		t.Errorf("number %d, %v, want %d; told %d times", got, err, id, r.reused)
	}
	if got, err := r.Find(digest(all + 1)); r.Digest(got) != digest(all+1) || err != nil || r.reused != 1 {
		t.Errorf("number %d, %v; told %d times that it means another namespace", got, err, r.reused)
	}
	if _, _ = r.openModel("m"); r.reused != 2 {
		t.Errorf("told %d times", r.reused)
	}
}

// The next start knows numbers, manifests and sizes.
func TestJournalAndFilesKeepNamespaces(t *testing.T) {
	r := newRig(t)
	j := r.openJournal()
	b := j.NewBatch()
	_, unused := r.openModel("never used")
	kept, keptID := r.openModel("kept")
	lost, lostID := r.openModel("lost")
	bad, badID := r.openModel("damaged")
	for _, id := range []uint16{keptID, lostID, badID} {
		r.save(b, id, 3, 100+int(id))
	}
	r.save(b, keptID, 4, 50)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.save(b, keptID, 3, 100+int(keptID))
	if !b.Empty() {
		t.Error("the journal is told again what it has")
	}
	r.files.mu.Lock()
	delete(r.files.text, filepath.Join(dir, lost.String()+".json"))
	r.files.text[filepath.Join(dir, bad.String()+".json")][10] ^= 1
	r.files.text[filepath.Join(dir, digest(1).String()+".json")] = []byte("forgotten in a crash")
	r.files.mu.Unlock()
	r.open()
	if err := errors.Join(r.Load(j), r.Load(j)); err != nil { // again, as where the journal proves to be damaged
		t.Fatal(err)
	}
	for ns, id := range map[connector.NamespaceDigest]uint16{kept: keptID, lost: lostID, bad: badID} {
		if got, known := r.Number(ns); got != id || !known || r.PayloadBytes(ns, 3) != 100+int(id) {
			t.Errorf("namespace %v has number %d, %v, want %d; payloads of %d bytes", ns, got, known, id, r.PayloadBytes(ns, 3))
		}
	}
	if r.Known()[unused] || r.PayloadBytes(kept, 4) != 50 || r.PayloadBytes(kept, 5) != 0 {
		t.Error("it knows too much, or too little")
	}
	for _, n := range r.List() {
		if (n.Manifest != nil) != (n.Digest == kept) {
			t.Errorf("namespace %v has manifest %q", n.Digest, n.Manifest)
		}
	}
	r.report.WarnOfNotes()
	if w := strings.Join(r.report.Warnings(), ""); strings.Count(w, "is lost") != 2*2 || strings.Contains(w, kept.String()) {
		t.Errorf("warnings: %s", w)
	}
	r.DropManifests()
	if len(r.files.text) != 2 {
		t.Errorf("%d files, want those of the two that have one", len(r.files.text))
	}
	r.files.write = func(path string) error {
		if strings.Contains(path, kept.String()) {
			t.Error("a manifest is written again that is there")
		}
		return nil
	}
	if r.save(b, keptID, 3, 100+int(keptID)); !b.Empty() {
		t.Error("the journal is told again what it has")
	}
	// An engine brings what was lost.
	if r.openModel("lost"); !r.wantsTidy() {
		t.Error("nobody is told to write the manifest")
	}
	if r.KeepLost(t.Context()); r.files.text[filepath.Join(dir, lost.String()+".json")] == nil {
		t.Error("the manifest is not written again")
	}
	for _, id := range []uint16{keptID, lostID} {
		if ns, scheme := r.Identity(id); ns != r.Digest(id) || scheme != record.KeySchemeTokens {
			t.Errorf("records of namespace %v are of %v, key scheme %d", r.Digest(id), ns, scheme)
		}
	}
}

// A new journal gets the namespaces that have records, and those that come later with their next one.
func TestNewJournalIsToldAgain(t *testing.T) {
	r := newRig(t)
	j := r.openJournal()
	b := j.NewBatch()
	_, first := r.openModel("first")
	_, _ = r.openModel("never used")
	_, late := r.openModel("late")
	r.save(b, first, 0, 100)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	d, err := j.Begin()
	if err != nil {
		t.Fatal(err)
	}
	r.Draft(d)
	r.save(b, late, 0, 200) // into the old one
	b.Discard()
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	j.Replace(d)
	r.Unnote()
	noted, err := j.Namespaces()
	if err != nil || len(noted) != 1 || noted[0].ID != first || noted[0].Digest != r.Digest(first) {
		t.Errorf("the new journal has %+v, %v", noted, err)
	}
	r.save(b, late, 0, 200)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	sizes := make(map[uint16]uint32)
	if noted, err = j.Namespaces(); err != nil || len(noted) != 2 {
		t.Errorf("it has %+v, %v", noted, err)
	}
	if err := j.Sizes(func(id uint16, _ connector.Shard, bytes uint32) { sizes[id] = bytes }); err != nil || sizes[first] != 100 || sizes[late] != 200 {
		t.Errorf("sizes %v, %v", sizes, err)
	}
}

// The first payload fixes the size of its shard. A write of another size asks for a look at whether
// its records are gone.
func TestPayloadSizeIsThatOfTheFirst(t *testing.T) {
	r := newRig(t)
	j := r.openJournal()
	b := j.NewBatch()
	ns, id := r.openModel("m")
	g, other := index.Group{Namespace: id, Shard: 1}, index.Group{Namespace: id, Shard: 2}
	if err := errors.Join(r.HoldPayload(ns, 1, 100), r.HoldPayload(ns, 1, 100)); err != nil { // two ranks
		t.Fatal(err)
	}
	r.ReleasePayload(ns, 1)
	if err := r.CheckSize(g, 200); !errors.Is(err, store.ErrPayloadSize) || r.wantsTidy() {
		t.Errorf("a write beside an engine of another size: %v", err)
	}
	r.save(b, id, 1, 100)
	r.ReleasePayload(ns, 1)
	r.FoundSize(g, 300)
	r.FoundSize(other, 300)
	if r.PayloadBytes(ns, 1) != 100 || r.PayloadBytes(ns, 2) != 300 {
		t.Errorf("sizes %d and %d", r.PayloadBytes(ns, 1), r.PayloadBytes(ns, 2))
	}
	if err := r.CheckSize(g, 200); !errors.Is(err, store.ErrPayloadSize) || !r.wantsTidy() {
		t.Errorf("a write of another size: %v", err)
	}
	if wrong := r.WrongSizes(); len(wrong) != 1 || !wrong[g] || len(r.WrongSizes()) != 0 {
		t.Errorf("to be looked at: %v", wrong)
	}
	f := r.Forgetting(id)
	f.Size, f.Shard = true, 1
	if err := r.Put(b, g, 100); err != nil || r.Forget(f) {
		t.Errorf("a size is forgotten though a record came, %v", err)
	}
	f = r.Forgetting(id)
	f.Size, f.Shard = true, 1
	if !r.Forget(f) || !r.Known()[id] || r.PayloadBytes(ns, 2) != 300 {
		t.Error("the size of a shard without records is not free, or more is")
	}
	f.DeleteFrom(b)
	r.save(b, id, 1, 200)
	noted := 0
	if err := errors.Join(b.Commit(), j.Sizes(func(_ uint16, _ connector.Shard, bytes uint32) { noted = int(bytes) })); err != nil || noted != 200 {
		t.Errorf("the journal has size %d, %v", noted, err)
	}
}

func TestClosedRegistryOpensNothing(t *testing.T) {
	r := newRig(t)
	r.Close()
	if _, err := r.Open(manifests.Model("m")); !errors.Is(err, store.ErrClosed) || r.Count() != 0 {
		t.Errorf("%v, %d namespaces", err, r.Count())
	}
}
