package shadow

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// stopped is the directory of a store with 100 records.
func stopped(t *testing.T) string {
	t.Helper()
	s, ns := storetest.Small(t, 64<<20)
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 50), 0, 1)
	dir := s.Stats().Dir
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

type state struct {
	sum  [32]byte
	info string
}

// everything is each file below dir with its content, its mode, its size, and when it was changed.
func everything(t *testing.T, dir string) map[string]state {
	t.Helper()
	all := make(map[string]state)
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s := state{info: info.Mode().String() + info.ModTime().String()}
		if e.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s.sum = sha256.Sum256(b)
		}
		all[path] = s
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func options() disk.FsckOptions {
	return disk.FsckOptions{Payload: true, Store: disk.Options{Logger: slog.New(slog.DiscardHandler)}}
}

// check runs a dry run, which must leave the store and the place of its copy as they were.
func check(t *testing.T, dir string) disk.FsckReport {
	t.Helper()
	before, temp := everything(t, dir), t.TempDir()
	r, err := Fsck(t.Context(), dir, temp, options())
	if err != nil {
		t.Fatal(err)
	}
	after := everything(t, dir)
	for path, s := range before {
		if after[path] != s {
			t.Errorf("%s was changed: %+v, %+v", path, s, after[path])
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, %d before", len(after), len(before))
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the copy is still there: %v, %v", left, err)
	}
	return r
}

func flip(t *testing.T, path string, offset int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[offset] ^= 4
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func segments(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, recovery.SegmentDir, "*"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	return list
}

func TestADryRunOfAnIntactStoreFindsNothing(t *testing.T) {
	dir := stopped(t)
	if r := check(t, dir); !r.Clean() || r.Records != 100 || r.Dir != dir || r.CheckedBytes == 0 || r.Recovered != recovery.RecoveredSnapshot {
		t.Errorf("%+v", r)
	}
}

// A store whose daemon was killed is not damaged: the journal has what the snapshot lacks.
func TestADryRunOfAKilledStoreReadsTheJournal(t *testing.T) {
	s, ns := storetest.Small(t, 64<<20)
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 50), 0, 1)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "killed")
	if err := os.CopyFS(dir, os.DirFS(s.Stats().Dir)); err != nil {
		t.Fatal(err)
	}
	if r := check(t, dir); !r.Clean() || r.Records != 100 || r.Recovered == recovery.RecoveredSnapshot {
		t.Errorf("%+v", r)
	}
}

// A dry run finds what the repair then does, and changes nothing.
func TestADryRunSaysWhatARepairDoes(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"payload":        func(t *testing.T, dir string) { flip(t, segments(t, dir)[0], 3*4096+5000) },
		"segment header": func(t *testing.T, dir string) { flip(t, segments(t, dir)[0], 40) },
		"format": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "FORMAT")); err != nil {
				t.Fatal(err)
			}
		},
		"journal": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, recovery.JournalDir)); err != nil {
				t.Fatal(err)
			}
		},
		"a file for a directory": func(t *testing.T, dir string) {
			journal := filepath.Join(dir, recovery.JournalDir)
			if err := errors.Join(os.RemoveAll(journal), os.WriteFile(journal, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"segment": func(t *testing.T, dir string) {
			if err := os.Remove(segments(t, dir)[0]); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := stopped(t)
			damage(t, dir)
			dry, again := check(t, dir), check(t, dir)
			if dry.Clean() || len(again.Dropped) != len(dry.Dropped) || len(again.Repaired) != len(dry.Repaired) {
				t.Errorf("%+v\nagain: %+v", dry, again)
			}
			for _, what := range slices.Concat(dry.Repaired, dry.Failed) {
				if strings.Contains(what, "kvconn-fsck-") {
					t.Errorf("%s names the copy", what)
				}
			}
			did, err := disk.Fsck(t.Context(), dir, options())
			if err != nil || len(did.Dropped) != len(dry.Dropped) || len(did.Repaired) != len(dry.Repaired) || did.Records != dry.Records {
				t.Errorf("the repair did\n%+v, %v\nthe dry run said\n%+v", did, err, dry)
			}
		})
	}
}

func TestADryRunKeepsDaemonsOutAndWaitsForNone(t *testing.T) {
	dir := stopped(t)
	s, err := disk.Open(t.Context(), disk.Options{Dir: dir, MaxBytes: 64 << 20, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fsck(t.Context(), dir, t.TempDir(), options()); !errors.Is(err, recovery.ErrInUse) {
		t.Errorf("beside a daemon: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := newCopy(t.Context(), dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if s, err := disk.Open(t.Context(), disk.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, recovery.ErrInUse) {
		t.Errorf("a daemon beside a dry run: %v, %v", s, err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestADryRunThatIsInterruptedLeavesNothing(t *testing.T) {
	dir, temp := stopped(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Fsck(ctx, dir, temp, options()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A shadow reads as a file does that the same was written to.
func TestShadowsReadAsFilesDo(t *testing.T) {
	const size = 300_000 // no multiple of a page
	dir, temp := t.TempDir(), t.TempDir()
	want := make([]byte, size)
	seed := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(seed.Uint32())
	}
	path := filepath.Join(dir, "large")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := newCopy(t.Context(), dir, temp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	before := everything(t, dir)
	name := filepath.Join(c.temp, "large")
	f, err := c.OpenFile(name, false, true)
	if err != nil {
		t.Fatal(err)
	}
	buf := store.AlignedBuffer(1 << 20)
	for i := range 500 {
		if i == 250 {
			if err := f.Allocate(400_000); err != nil {
				t.Fatal(err)
			}
			want = append(want, make([]byte, 400_000-size)...)
		}
		offset := seed.IntN(len(want))
		n := seed.IntN(min(len(want)-offset, 20_000) + 1)
		cut := seed.IntN(n + 1)
		if i%2 == 0 {
			b := make([]byte, n)
			for j := range b {
				b[j] = byte(seed.Uint32())
			}
			if err := f.WriteVec(b[:cut], b[cut:], int64(offset)); err != nil {
				t.Fatal(err)
			}
			copy(want[offset:], b)
			continue
		}
		if err := f.ReadVec(buf[:cut], buf[cut:n], int64(offset)); err != nil || !bytes.Equal(buf[:n], want[offset:offset+n]) {
			t.Fatalf("step %d: %d bytes at %d differ, %v", i, n, offset, err)
		}
	}
	if got, err := f.Size(); err != nil || got != int64(len(want)) {
		t.Errorf("size %d, %v", got, err)
	}
	if err := f.ReadVec(buf[:4096], nil, int64(len(want))-100); err == nil {
		t.Error("a read past the end is no error")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	// Under another name it has the same content.
	if err := c.Rename(name, name+".bad"); err != nil {
		t.Fatal(err)
	}
	if f, err = c.OpenFile(name+".bad", false, false); err != nil {
		t.Fatal(err)
	}
	if err := f.ReadVec(buf[:len(want)], nil, 0); err != nil || !bytes.Equal(buf[:len(want)], want) {
		t.Errorf("after a rename it reads otherwise: %v", err)
	}
	_ = f.Close()
	if _, err := c.OpenFile(name, false, false); err == nil {
		t.Error("the old name is still there")
	}
	for path, s := range everything(t, dir) {
		if before[path] != s {
			t.Errorf("%s was changed", path)
		}
	}
}
