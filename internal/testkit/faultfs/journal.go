package faultfs

import (
	"io"
	"os"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// journalFiles are the files of the journal.
type journalFiles struct {
	vfs.FS
	t tree
}

// Create implements vfs.FS, as do all methods below.
func (f journalFiles) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(fault.Create, name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f journalFiles) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(fault.Open, name, func() (vfs.File, error) { return f.FS.Open(name, opts...) })
}

func (f journalFiles) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(fault.Open, name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f journalFiles) OpenDir(name string) (vfs.File, error) {
	return f.open(fault.Open, name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f journalFiles) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(fault.Create, to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, c) })
}

// open opens a file, or fails if the script says so.
func (f journalFiles) open(kind fault.Kind, name string, open func() (vfs.File, error)) (vfs.File, error) {
	if err := f.t.reach(kind, name); err != nil {
		return nil, err
	}
	opened, err := open()
	if err != nil {
		return nil, err
	}
	return &journalFile{File: opened, t: f.t, path: name}, nil
}

func (f journalFiles) Link(from, to string) error {
	if err := f.t.reach(fault.Create, to); err != nil {
		return err
	}
	return f.FS.Link(from, to)
}

func (f journalFiles) Remove(name string) error {
	if err := f.t.reach(fault.Remove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f journalFiles) RemoveAll(name string) error {
	if err := f.t.reach(fault.Remove, name); err != nil {
		return err
	}
	return f.FS.RemoveAll(name)
}

func (f journalFiles) Rename(from, to string) error {
	if err := f.t.reach(fault.Rename, from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f journalFiles) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.t.reach(fault.Mkdir, dir); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

func (f journalFiles) Lock(name string) (io.Closer, error) {
	if err := f.t.reach(fault.Lock, name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

func (f journalFiles) List(dir string) ([]string, error) {
	if err := f.t.reach(fault.List, dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f journalFiles) Stat(name string) (vfs.FileInfo, error) {
	if err := f.t.reach(fault.Stat, name); err != nil {
		return nil, err
	}
	return f.FS.Stat(name)
}

func (f journalFiles) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if err := f.t.reach(fault.Stat, path); err != nil {
		return vfs.DiskUsage{}, err
	}
	return f.FS.GetDiskUsage(path)
}

func (f journalFiles) Unwrap() vfs.FS { return f.FS }

// journalFile is an open file of the journal. It does not give out its descriptor, because
// operations on that would bypass the faults.
type journalFile struct {
	vfs.File
	t    tree
	path string
	// position is where the next Read or Write is.
	position atomic.Int64
}

// Read implements vfs.File, as do all methods below.
func (f *journalFile) Read(b []byte) (int, error) {
	at := f.position.Load()
	n, err := f.reading(b, at, func() (int, error) { return f.File.Read(b) })
	f.position.Add(int64(n))
	return n, err
}

func (f *journalFile) ReadAt(b []byte, at int64) (int, error) {
	return f.reading(b, at, func() (int, error) { return f.File.ReadAt(b, at) })
}

func (f *journalFile) reading(b []byte, at int64, read func() (int, error)) (int, error) {
	a := f.t.act(fault.Read, f.path, at, int64(len(b)))
	if a.Err != nil {
		return 0, failed(fault.Read, f.path, a.Err)
	}
	n, err := read()
	a.FlipBits(b[:n])
	return n, err
}

func (f *journalFile) Write(b []byte) (int, error) {
	at := f.position.Load()
	n, err := f.writing(b, at, f.File.Write)
	f.position.Add(int64(n))
	return n, err
}

func (f *journalFile) WriteAt(b []byte, at int64) (int, error) {
	return f.writing(b, at, func(part []byte) (int, error) { return f.File.WriteAt(part, at) })
}

func (f *journalFile) writing(b []byte, at int64, write func([]byte) (int, error)) (int, error) {
	a := f.t.act(fault.Write, f.path, at, int64(len(b)))
	switch {
	case a.Err != nil:
		return 0, failed(fault.Write, f.path, a.Err)
	case a.Drop:
		// Zeros take the place of the lost write: the file is as long as the writer thinks.
		return write(make([]byte, len(b)))
	case a.Torn:
		n, _ := write(b[:min(a.TornBytes(len(b)), len(b))])
		return n, failed(fault.Write, f.path, fault.ErrTorn)
	case a.Flip > 0:
		b = append([]byte(nil), b...)
		a.FlipBits(b)
	}
	return write(b)
}

func (f *journalFile) Preallocate(offset, length int64) error {
	if err := f.t.reach(fault.Allocate, f.path); err != nil {
		return err
	}
	return f.File.Preallocate(offset, length)
}

func (f *journalFile) Stat() (vfs.FileInfo, error) {
	if err := f.t.reach(fault.Stat, f.path); err != nil {
		return nil, err
	}
	return f.File.Stat()
}

func (f *journalFile) Sync() error { return f.sync(f.File.Sync) }

func (f *journalFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *journalFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full && err == nil, err
}

func (f *journalFile) sync(sync func() error) error {
	a := f.t.act(fault.Sync, f.path, 0, 0)
	if a.Err != nil || a.Drop {
		return failed(fault.Sync, f.path, a.Err)
	}
	return sync()
}

func (f *journalFile) Fd() uintptr { return vfs.InvalidFd }
