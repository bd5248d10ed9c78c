package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// childEnv makes the test binary a writer process that is meant to be killed.
const childEnv = "KVCONN_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := childWriter(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	wait.AllowAtOnce()
	os.Exit(m.Run())
}

const childChain = 20

// childOptions have room for more than one chain and less than what the child writes, so
// that it evicts.
func childOptions(dir string) Options {
	o := testOptions(dir)
	o.MaxBytes = 12 << 20
	return o
}

// childWriter writes chains without end and says on its standard output which are written
// and which of those a barrier has made durable.
func childWriter(dir string) error {
	s, err := Open(context.Background(), childOptions(dir))
	if err != nil {
		return err
	}
	ns, err := s.OpenNamespace(testManifest("child"))
	if err != nil {
		return err
	}
	first := 0
	if len(os.Args) > 0 {
		_, _ = fmt.Sscan(os.Getenv(childEnv+"_FIRST"), &first)
	}
	for chain := first; ; chain++ {
		written := make(chan error, childChain)
		for _, r := range chainOf(ns, chain, childChain) {
			op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: r.payload()}
			if _, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { written <- op.Err }); err != nil {
				return err
			}
		}
		for range childChain {
			if err := <-written; err != nil {
				return err
			}
		}
		fmt.Println("written", chain)
		if chain%4 == 3 {
			if err := s.Sync(context.Background()); err != nil {
				return err
			}
			fmt.Println("durable", chain)
		}
	}
}

// runChild starts a writer, kills it after a while and returns the last chain that it
// wrote and the last that it said was durable.
func runChild(t *testing.T, dir string, first int, life time.Duration) (written, durable int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprintf("%s_FIRST=%d", childEnv, first))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(life, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	written, durable = first-1, -1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		n := 0
		_, _ = fmt.Sscan(rest, &n)
		switch word {
		case "written":
			written = n
		case "durable":
			durable = n
		case "error":
			t.Errorf("child: %s", rest)
		}
	}
	_ = cmd.Wait()
	return written, durable
}

// checkAfterKill opens the store that a killed child left and checks what must hold.
func checkAfterKill(t *testing.T, dir string, from, written, durable int) {
	t.Helper()
	o := childOptions(dir)
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	awaitRebuild(t, s)
	st := s.Stats()
	physical, err := o.fsOrOS().PhysicalBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	if physical > o.MaxBytes || st.PhysicalBytes > o.MaxBytes {
		t.Errorf("cap passed: %d bytes on disk, %d accounted, cap %d", physical, st.PhysicalBytes, o.MaxBytes)
	}
	if st.PhysicalBytes < physical {
		t.Errorf("%d bytes accounted for, %d on disk", st.PhysicalBytes, physical)
	}
	ns := openNamespace(t, s, "child")
	var found int64
	for chain := max(0, from); chain <= written+1; chain++ {
		for i, err := range readAll(t, s, chainOf(ns, chain, childChain)) {
			switch {
			case err == nil:
				found++
			case !errors.Is(err, store.ErrGone):
				t.Errorf("chain %d block %d: %v", chain, i, err)
			case chain == durable:
				t.Errorf("chain %d block %d is gone though a barrier had made it durable", chain, i)
			}
		}
	}
	if after := s.Stats(); after.Corrupt != 0 || found > after.Records {
		t.Errorf("%d corrupt, %d found of %d", after.Corrupt, found, after.Records)
	}
	checkAccounting(t, s)
}

func (o *Options) fsOrOS() interface{ PhysicalBytes(string) (int64, error) } {
	c := *o
	c.EnsureDefaults()
	return c.fs
}

// awaitRebuild waits until all headers that had to be read are read.
func awaitRebuild(t testing.TB, s *Store) {
	t.Helper()
	select {
	case <-s.rebuild.Ended():
	case <-time.After(time.Minute):
		t.Fatalf("rebuild does not end: %+v", s.Stats())
	}
}

// checkAccounting checks that slots add up, once the shrinker of a store that was just opened,
// and whoever makes a segment, are through.
func checkAccounting(t *testing.T, s *Store) {
	t.Helper()
	err := s.space.CheckAccounting()
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); err = s.space.CheckAccounting() {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestKilledWriterLosesNothingDurable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	next := 0
	for round := range killRounds() {
		life := time.Duration(30+round*37%150) * time.Millisecond
		w := watchCap(t, childOptions(dir))
		written, durable := runChild(t, dir, next, life)
		w.stop()
		checkAfterKill(t, dir, next-8, written, durable)
		next = written + 2
	}
}

func killRounds() int {
	if longTest() {
		return 200
	}
	return 6
}

// longTest reports whether the tests of crashes and faults are to be complete: every
// operation fails in turn, 200 kills. By default they are a sample.
func longTest() bool { return os.Getenv("KVCONN_TEST_LONG") != "" }

func TestBitFlipIsFoundAndOnlyThatRecordDropped(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 30)
	mustWrite(t, s, records)
	slot := segment.SlotBytes(testPayload)
	for i, within := range []int64{0, 9, 12, 20, 33, 45, 60, 85, 100, 120, 145, 153, 3000, 4090, 4096, 4097, 20_000, 4096 + testPayload - 1} {
		f, ok := s.table.Get(internalID(s, records[i].ID), false)
		if !ok {
			t.Fatalf("record %d is not there", i)
		}
		g := s.space.At(f.Ref)
		if err := flipBit(g.Path, 4096+int64(f.Ref-g.Base)*slot+within, uint(i%8)); err != nil {
			t.Fatal(err)
		}
		if err := readAll(t, s, records[i:i+1])[0]; !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("flip at %d: %v", within, err)
		}
		if isPresent(s, records[i].ID) {
			t.Errorf("flip at %d: record is still there", within)
		}
		if got := s.Stats().Corrupt; got != uint64(i+1) {
			t.Errorf("%d corrupt records counted, want %d", got, i+1)
		}
	}
	mustRead(t, s, records[18:])
	mustWrite(t, s, records[:18])
	mustRead(t, s, records)
}

func TestStaleIndexEntryIsNeverAHit(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 2)
	mustWrite(t, s, records)
	// The slot of record 0 is overwritten with record 1, as after a deletion that was lost.
	a, _ := s.table.Get(internalID(s, records[0].ID), false)
	b, _ := s.table.Get(internalID(s, records[1].ID), false)
	g := s.space.At(a.Ref)
	buf := store.AlignedBuffer(int(g.SlotBytes))
	if err := g.File.ReadVec(buf, nil, g.Offset(uint32(b.Ref-g.Base))); err != nil {
		t.Fatal(err)
	}
	if err := g.File.WriteVec(buf, nil, g.Offset(uint32(a.Ref-g.Base))); err != nil {
		t.Fatal(err)
	}
	if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("stale entry: %v", err)
	}
	mustRead(t, s, records[1:])
}

func TestCapIsNeverPassed(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := range 40 {
		mustWrite(t, s, chainOf(ns, chain, 30))
		physical, err := s.opts.fs.PhysicalBytes(o.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); physical > o.MaxBytes || st.PhysicalBytes > o.MaxBytes {
			t.Fatalf("%d bytes on disk, %d accounted, cap %d", physical, st.PhysicalBytes, o.MaxBytes)
		}
	}
	st := s.Stats()
	if st.Evicted == 0 || st.SegmentBytes < o.MaxBytes/2 {
		t.Errorf("%d evicted, segments of %d bytes under a cap of %d", st.Evicted, st.SegmentBytes, o.MaxBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if physical, _ := s.opts.fs.PhysicalBytes(o.Dir); physical > o.MaxBytes {
		t.Fatalf("%d bytes on disk after the stop", physical)
	}
}

func TestLeastRecentlyUsedGoesFirstAndEndsOfChainsBeforeTheirHeads(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	kept, other := chainOf(ns, 1, 60), chainOf(ns, 2, 60)
	mustWrite(t, s, kept)
	mustWrite(t, s, other)
	for chain := 3; s.Stats().Evicted < 80; chain++ {
		lookup(s, ns, kept)
		mustWrite(t, s, chainOf(ns, chain, 10))
		if n := lookup(s, ns, kept); n != len(kept) {
			t.Fatalf("a chain in use lost its end after %d blocks", n)
		}
		// From head to end, while the evictor goes the other way.
		for i, gone := 0, -1; i < len(other); i++ {
			switch there := isPresent(s, other[i].ID); {
			case !there && gone < 0:
				gone = i
			case there && gone >= 0:
				t.Fatalf("block %d of an evicted chain is gone and block %d is there", gone, i)
			}
		}
	}
}

func TestLeasePinsUntilItEnds(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	o.clock = func() time.Time { return now }
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	pinned := chainOf(ns, 1, 100)
	mustWrite(t, s, pinned)
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(pinned), time.Hour)
	if n != 100 || lease == 0 {
		t.Fatalf("found %d, lease %d", n, lease)
	}
	for chain := 2; chain < 30; chain++ {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	mustRead(t, s, pinned)
	if !s.Renew(lease, time.Second) {
		t.Error("lease could not be renewed")
	}
	s.Release(lease)
	if s.Renew(lease, time.Second) {
		t.Error("released lease was renewed")
	}
	s.Release(lease)
	for chain := 30; chain < 60; chain++ {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	if n := lookup(s, ns, pinned); n != 0 {
		t.Errorf("%d blocks of a released chain survived", n)
	}
}

func TestWritesFailAsBusyWhenEverythingIsPinned(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	o.SlotWait = 20 * time.Millisecond
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	var held []index.Ref
	busy := false
	for chain := 1; chain < 60 && !busy; chain++ {
		for _, r := range chainOf(ns, chain, 10) {
			result := make(chan error, 1)
			op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent}, Payload: r.payload()}
			// Pinned from within done: before anything can evict the record.
			_, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
				if f, ok := s.table.Get(internalID(s, op.ID), true); ok {
					held = append(held, f.Ref)
				}
				result <- op.Err
			})
			if err == nil {
				err = <-result
			}
			if err != nil && !errors.Is(err, store.ErrBusy) {
				t.Fatal(err)
			}
			busy = busy || err != nil
		}
	}
	if !busy {
		t.Fatal("every write found a slot though all records are pinned")
	}
	s.table.Unpin(held...)
	writeUntilDone(t, s, chainOf(ns, 100, 10))
}

func TestWriteBeyondTheBudgetIsRefusedAtOnce(t *testing.T) {
	o := testOptions(t.TempDir())
	o.WriteInFlightBytes = 64 << 10
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 20)
	ops := make([]*store.WriteOp, len(records))
	for i, r := range records {
		ops[i] = &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: r.payload()}
	}
	finished := make(chan error, len(ops))
	// The committer is held up, so that nothing is finished meanwhile.
	release := make(chan struct{})
	blocker := &store.WriteOp{Record: store.Record{ID: chainOf(ns, 2, 1)[0].ID}, Payload: records[0].payload()}
	blocked := make(chan struct{})
	if _, err := s.Write([]*store.WriteOp{blocker}, func(*store.WriteOp) { close(blocked); <-release }); err != nil {
		t.Fatal(err)
	}
	<-blocked
	n, err := s.Write(ops, func(op *store.WriteOp) { finished <- op.Err })
	if n != 2 || !errors.Is(err, store.ErrBusy) {
		t.Errorf("accepted %d: %v", n, err)
	}
	close(release)
	for range 2 {
		if err := <-finished; err != nil {
			t.Error(err)
		}
	}
	if st := s.Stats(); st.WritesRefused != 1 {
		t.Errorf("%d refused", st.WritesRefused)
	}
}

func TestDirectoryInUse(t *testing.T) {
	o := testOptions(t.TempDir())
	openTest(t, o)
	_, err := Open(context.Background(), o)
	if !errors.Is(err, recovery.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("error %v", err)
	}
}

func TestUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), testOptions(filepath.Join(file, "store"))); err == nil {
		t.Error("opened a store below a file")
	}
	if u, err := user.Current(); err == nil && u.Uid == "0" {
		return // root writes everywhere
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), testOptions(filepath.Join(dir, "store"))); !errors.Is(err, os.ErrPermission) {
		t.Errorf("error %v", err)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, recovery.FormatFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var note format.Note
	if _, err := note.Decode(b); err != nil {
		t.Fatal(err)
	}
	note.Format++
	if b, err = note.Encode(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), o); !errors.Is(err, recovery.ErrNewerFormat) {
		t.Errorf("error %v", err)
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 2)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range append(writeAll(t, s, records), readAll(t, s, records)...) {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("error %v", err)
		}
	}
	if n := lookup(s, ns, records); n != 0 {
		t.Errorf("lookup found %d", n)
	}
	if err := s.Sync(context.Background()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("sync: %v", err)
	}
}
