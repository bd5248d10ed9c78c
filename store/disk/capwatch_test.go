package disk

import (
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// capWatch looks at what a store's directory occupies, again and again from another
// goroutine, and fails the test when that is more than the cap, more than the store
// accounts for, or leaves less free than must stay free.
type capWatch struct {
	t    testing.TB
	o    Options
	end  chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	store   *Store
	samples int
	failed  bool
}

// watchCap begins to watch the directory of o until the test ends or stop is called.
func watchCap(t testing.TB, o Options) *capWatch {
	t.Helper()
	o.EnsureDefaults()
	w := &capWatch{t: t, o: o, end: make(chan struct{})}
	interval := 2 * time.Millisecond
	if _, ok := o.fs.(*memDisk); !ok {
		interval = 10 * time.Millisecond // every sample asks for each file
	}
	w.done.Go(func() {
		for {
			select {
			case <-w.end:
				return
			case <-time.After(interval):
				w.sample()
			}
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *capWatch) stop() {
	w.mu.Lock()
	stopped := w.end == nil
	end := w.end
	w.mu.Unlock()
	if stopped {
		return
	}
	close(end)
	w.done.Wait()
	// A directory cannot be looked at while parts of it go, and a store may live for less than
	// an interval.
	for range 1000 {
		if w.sample(); w.looked() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = nil
	if w.samples == 0 {
		w.t.Error("the directory was never looked at")
	}
}

func (w *capWatch) looked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.samples
}

// of has the accounting of an open store compared, too; nil ends that.
func (w *capWatch) of(s *Store) *Store {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.store = s
	return s
}

func (w *capWatch) accounted() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.store == nil {
		return 0
	}
	st := w.store.Stats()
	return st.PhysicalBytes
}

// sample compares. Looking at a directory takes a while in which segments come and go, so
// that only what is seen three times counts.
func (w *capWatch) sample() {
	var physical, before, after int64
	for range 3 {
		before = w.accounted()
		n, err := w.physical()
		if err != nil {
			return // gone meanwhile
		}
		physical, after = n, w.accounted()
		if physical <= w.o.MaxBytes && (before == 0 || after == 0 || physical <= max(before, after)) {
			w.mu.Lock()
			w.samples++
			w.mu.Unlock()
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples++
	if w.failed {
		return // said once
	}
	w.failed = true
	if physical > w.o.MaxBytes {
		w.t.Errorf("cap passed: %d bytes on disk, cap %d", physical, w.o.MaxBytes)
	}
	if before > 0 && after > 0 && physical > max(before, after) {
		w.t.Errorf("%d bytes on disk, %d accounted for", physical, max(before, after))
	}
}

// physical is what the directory and the journal occupy.
func (w *capWatch) physical() (int64, error) {
	n, err := w.o.fs.PhysicalBytes(w.o.Dir)
	if err != nil || w.o.journalFS == vfs.Default {
		return n, err
	}
	journal, err := treeBytes(w.o.journalFS, filepath.Join(w.o.Dir, recovery.JournalDir))
	return n + journal, err
}

func treeBytes(fs vfs.FS, dir string) (total int64, err error) {
	names, err := fs.List(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		info, err := fs.Stat(path.Join(dir, name))
		switch {
		case os.IsNotExist(err):
		case err != nil:
			return 0, err
		case info.IsDir():
			n, err := treeBytes(fs, path.Join(dir, name))
			if err != nil {
				return 0, err
			}
			total += n
		default:
			total += info.Size()
		}
	}
	return total, nil
}
