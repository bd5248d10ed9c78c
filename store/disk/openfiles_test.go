package disk

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

// openFiles is a memory disk that counts the files and locks that are open.
type openFiles struct {
	*memDisk
	open atomic.Int64
}

func (d *openFiles) OpenFile(path string, create, direct bool) (fsio.File, error) {
	f, err := d.memDisk.OpenFile(path, create, direct)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &openFile{File: f, d: d}, nil
}

func (d *openFiles) Lock(path, holder string) (io.Closer, error) {
	if err := d.op("lock", path); err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &openFile{d: d}, nil
}

type openFile struct {
	fsio.File
	d      *openFiles
	closed atomic.Bool
}

func (f *openFile) Close() error {
	if f.closed.Swap(true) {
		panic("closed twice")
	}
	f.d.open.Add(-1)
	return nil
}

// An opening that fails at any step, of the disk or of the journal, keeps no file open, nor does a store
// that was opened all the same and closed.
func TestNoFileStaysOpen(t *testing.T) {
	step := int64(3)
	if longTest() {
		step = 1
	}
	failures := 0
	for _, ofJournal := range []bool{false, true} {
		for n, reached := int64(1), true; reached; n += step {
			d, j := &openFiles{memDisk: newMemDisk()}, newJournalFS()
			o := memOptions(d.memDisk, j)
			o.fs = d
			fillMem(t, o)
			var seen atomic.Int64
			if ofJournal {
				o.journalFS = errorfs.Wrap(newJournalFS(), errorfs.InjectorFunc(func(op errorfs.Op) error {
					if seen.Add(1) == n {
						return unix.EMFILE
					}
					return nil
				}))
			} else {
				o.journalFS = j
				d.hook(func(string, string) error {
					if seen.Add(1) == n {
						return unix.EMFILE
					}
					return nil
				})
			}
			s, err := Open(t.Context(), o)
			if err == nil {
				_ = s.Close()
			} else {
				failures++
			}
			if open := d.open.Load(); open != 0 {
				t.Errorf("operation %d fails (%v): %d files are open", n, err, open)
			}
			reached = seen.Load() >= n
		}
	}
	if failures == 0 {
		t.Error("no opening failed")
	}
	t.Logf("%d openings failed", failures)
}
