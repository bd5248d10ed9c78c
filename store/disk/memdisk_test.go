package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// memDisk is a disk in memory that can lose power: what was written to a file and not
// synced is then kept or lost by sectors of 4 KiB, at random.
type memDisk struct {
	mu    sync.Mutex
	files map[string]*memFile
	dirs  map[string]bool
	// before, if not nil, is called with the lock not held before every operation on a
	// segment or on the directory; its error is the operation's.
	before atomic.Pointer[func(op, path string) error]
	// room is how many bytes may be allocated; 0 is without end.
	room int64
	// others is what other users of the disk occupy, of total bytes. Without total there is
	// more room than anyone needs.
	total, others int64
}

type memFile struct {
	disk   *memDisk
	path   string
	data   []byte
	synced []byte
	// unsynced are the sectors written since the last sync.
	unsynced map[int64]bool
}

func newMemDisk() *memDisk {
	return &memDisk{files: make(map[string]*memFile), dirs: make(map[string]bool)}
}

// crash calls journal while nothing changes on the disk, and returns the disk as it is
// after the loss of power.
func (m *memDisk) crash(g *rand.Rand, journal func()) *memDisk {
	m.mu.Lock()
	defer m.mu.Unlock()
	journal()
	out := newMemDisk()
	for d := range m.dirs {
		out.dirs[d] = true
	}
	keep := g.Float64()
	for path, f := range m.files {
		c := &memFile{disk: out, path: path, data: append([]byte(nil), f.synced...), unsynced: make(map[int64]bool)}
		for sector := range f.unsynced {
			if g.Float64() < keep {
				at := sector * fsio.Align
				copy(c.data[at:], f.data[at:min(at+fsio.Align, int64(len(f.data)))])
			}
		}
		c.synced = append([]byte(nil), c.data...)
		out.files[path] = c
	}
	return out
}

func (m *memDisk) hook(before func(op, path string) error) { m.before.Store(&before) }

func (m *memDisk) op(op, path string) error {
	before := m.before.Load()
	if before == nil {
		return nil
	}
	if err := (*before)(op, path); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

func (m *memDisk) OpenFile(path string, create, _ bool) (fsio.File, error) {
	if err := m.op("open", path); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[path]
	switch {
	case create && f != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: os.ErrExist}
	case create:
		f = &memFile{disk: m, path: path, unsynced: make(map[int64]bool)}
		m.files[path] = f
	case f == nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return f, nil
}

func (m *memDisk) ReadFile(path string) ([]byte, error) {
	if err := m.op("open", path); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return append([]byte(nil), f.data...), nil
}

func (m *memDisk) WriteFileAtomic(path string, b []byte) error {
	if err := m.op("write", path); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[path] = &memFile{disk: m, path: path, data: append([]byte(nil), b...), synced: append([]byte(nil), b...), unsynced: make(map[int64]bool)}
	return nil
}

func (m *memDisk) MkdirAll(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirs[path] = true
	return nil
}

type memEntry struct{ fs.FileInfo }

func (e memEntry) Type() fs.FileMode          { return 0 }
func (e memEntry) Info() (fs.FileInfo, error) { return e.FileInfo, nil }

type memInfo string

func (i memInfo) Name() string     { return string(i) }
func (memInfo) Size() int64        { return 0 }
func (memInfo) Mode() fs.FileMode  { return 0 }
func (memInfo) ModTime() time.Time { return time.Time{} }
func (memInfo) IsDir() bool        { return false }
func (memInfo) Sys() any           { return nil }

func (m *memDisk) ReadDir(path string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []fs.DirEntry
	for p := range m.files {
		if filepath.Dir(p) == path {
			out = append(out, memEntry{memInfo(filepath.Base(p))})
		}
	}
	for d := range m.dirs {
		if filepath.Dir(d) == path {
			out = append(out, memEntry{memInfo(filepath.Base(d))})
		}
	}
	return out, nil
}

func (m *memDisk) Remove(path string) error {
	if err := m.op("remove", path); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[path] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: os.ErrNotExist}
	}
	delete(m.files, path)
	return nil
}

func (m *memDisk) Rename(from, to string) error {
	if err := m.op("rename", from); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[from] == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: os.ErrNotExist}
	}
	m.files[to] = m.files[from]
	delete(m.files, from)
	return nil
}

func (m *memDisk) SyncDir(path string) error { return m.op("syncdir", path) }

func (m *memDisk) Lock(string, string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (m *memDisk) Room(path string) (fsio.Room, error) {
	if err := m.op("statfs", path); err != nil {
		return fsio.Room{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total == 0 {
		return fsio.Room{TotalBytes: 1 << 40, FreeBytes: 1 << 39}, nil
	}
	return fsio.Room{TotalBytes: m.total, FreeBytes: max(0, m.total-m.others-m.used())}, nil
}

// used is what is allocated. m.mu is held.
func (m *memDisk) used() (n int64) {
	for _, f := range m.files {
		n += int64(len(f.data))
	}
	return n
}

// fill has other users of the disk occupy that much.
func (m *memDisk) fill(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.others = bytes
}

// segmentPaths are the paths of the segment files, in order.
func (m *memDisk) segmentPaths() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for path := range m.files {
		if strings.HasSuffix(path, segment.Suffix) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

func (m *memDisk) PhysicalBytes(dir string) (int64, error) {
	if err := m.op("measure", dir); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var n int64
	for p, f := range m.files {
		if rel, err := filepath.Rel(dir, p); err == nil && filepath.IsLocal(rel) {
			n += int64(len(f.data))
		}
	}
	return n, nil
}

func (f *memFile) ReadVec(a, b []byte, offset int64) error {
	if err := f.disk.op("read", f.path); err != nil {
		return err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	for _, s := range [][]byte{a, b} {
		if offset+int64(len(s)) > int64(len(f.data)) {
			return &fs.PathError{Op: "read", Path: f.path, Err: io.ErrUnexpectedEOF}
		}
		offset += int64(copy(s, f.data[offset:]))
	}
	return nil
}

func (f *memFile) WriteVec(a, b []byte, offset int64) error {
	if err := f.disk.op("write", f.path); err != nil {
		return err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	for _, s := range [][]byte{a, b} {
		if len(s)%fsio.Align != 0 || offset%fsio.Align != 0 {
			return fmt.Errorf("write of %d bytes at %d is not aligned", len(s), offset)
		}
		f.resize(offset + int64(len(s)))
		copy(f.data[offset:], s)
		for at := offset; at < offset+int64(len(s)); at += fsio.Align {
			f.unsynced[at/fsio.Align] = true
		}
		offset += int64(len(s))
	}
	return nil
}

// resize makes the file at least that large, durably so.
func (f *memFile) resize(size int64) {
	if more := size - int64(len(f.data)); more > 0 {
		f.data = append(f.data, make([]byte, more)...)
		f.synced = append(f.synced, make([]byte, more)...)
	}
}

func (f *memFile) Allocate(size int64) error {
	if err := f.disk.op("allocate", f.path); err != nil {
		return err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	used := f.disk.used()
	if room := f.disk.room; room > 0 && used+size > room {
		return &fs.PathError{Op: "allocate", Path: f.path, Err: unix.ENOSPC}
	}
	if total := f.disk.total; total > 0 && used+f.disk.others+size-int64(len(f.data)) > total {
		return &fs.PathError{Op: "allocate", Path: f.path, Err: unix.ENOSPC}
	}
	f.resize(size)
	return nil
}

func (f *memFile) Datasync() error {
	if err := f.disk.op("sync", f.path); err != nil {
		return err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	for sector := range f.unsynced {
		at := sector * fsio.Align
		copy(f.synced[at:], f.data[at:min(at+fsio.Align, int64(len(f.data)))])
	}
	clear(f.unsynced)
	return nil
}

func (f *memFile) Size() (int64, error) {
	if err := f.disk.op("size", f.path); err != nil {
		return 0, err
	}
	return f.bytes(), nil
}

func (f *memFile) PhysicalBytes() (int64, error) {
	if err := f.disk.op("measure", f.path); err != nil {
		return 0, err
	}
	return f.bytes(), nil
}

func (f *memFile) bytes() int64 {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.data))
}

func (f *memFile) Close() error { return nil }

// failNth makes the nth operation fail, counted from the call on, and reports how many
// there were.
func failNth(n int64, err error) (before func(op, path string) error, count func() int64) {
	var mu sync.Mutex
	var seen int64
	return func(string, string) error {
			mu.Lock()
			defer mu.Unlock()
			if seen++; seen == n {
				return errors.Join(errTestFault, err)
			}
			return nil
		}, func() int64 {
			mu.Lock()
			defer mu.Unlock()
			return seen
		}
}
