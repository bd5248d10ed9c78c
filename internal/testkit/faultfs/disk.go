// Package faultfs puts the faults of a script below a store. One script applies to its segments
// and small files, and to its journal.
package faultfs

import (
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// Under returns o with the operating system's files and the injector's faults on them. The
// paths of the script are relative to o.Dir. The disk is not measured.
func Under(o disk.Options, i *fault.Injector) disk.Options { return UnderOn(0, o, i) }

// UnderOn is [Under] on a file system that reports a size of totalBytes, all of it the store's or
// free; 0 keeps the real size.
func UnderOn(totalBytes int64, o disk.Options, i *fault.Injector) disk.Options {
	o.Calibrate = false
	t := tree{o.Dir, totalBytes, i}
	return o.WithFS(files{fsio.OS{}, t}, journalFiles{vfs.Default, t})
}

// tree is a directory with faults.
type tree struct {
	root       string
	totalBytes int64
	injector   *fault.Injector
}

// act asks what happens to an operation.
func (t tree) act(kind fault.Kind, path string, offset, bytes int64) fault.Action {
	rel, err := filepath.Rel(t.root, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return fault.Action{}
	}
	return t.injector.Act(fault.Op{Kind: kind, Path: filepath.ToSlash(rel), Offset: offset, Bytes: bytes})
}

// reach is act for an operation that can only fail.
func (t tree) reach(kind fault.Kind, path string) error {
	a := t.act(kind, path, 0, 0)
	return failed(kind, path, a.Err)
}

func failed(kind fault.Kind, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: kind.String(), Path: path, Err: err}
}

// files are the segments and small files.
type files struct {
	fs fsio.FS
	t  tree
}

var _ fsio.FS = files{}

// OpenFile implements fsio.FS, as do all methods below.
func (f files) OpenFile(path string, create, direct bool) (fsio.File, error) {
	kind := fault.Open
	if create {
		kind = fault.Create
	}
	if err := f.t.reach(kind, path); err != nil {
		return nil, err
	}
	opened, err := f.fs.OpenFile(path, create, direct)
	if err != nil {
		return nil, err
	}
	return &file{opened, f.t, path}, nil
}

func (f files) ReadFile(path string) ([]byte, error) {
	if err := f.t.reach(fault.Open, path); err != nil {
		return nil, err
	}
	b, err := f.fs.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a := f.t.act(fault.Read, path, 0, int64(len(b)))
	if a.Err != nil {
		return nil, failed(fault.Read, path, a.Err)
	}
	a.FlipBits(b)
	return b, nil
}

func (f files) WriteFileAtomic(path string, b []byte) error {
	a := f.t.act(fault.Write, path, 0, int64(len(b)))
	switch {
	case a.Err != nil:
		return failed(fault.Write, path, a.Err)
	case a.Torn: // the old content stays: that is what atomic means
		return failed(fault.Write, path, fault.ErrTorn)
	case a.Drop:
		return nil
	case a.Flip > 0:
		b = append([]byte(nil), b...)
		a.FlipBits(b)
	}
	if err := f.t.reach(fault.Sync, path); err != nil {
		return err
	}
	return f.fs.WriteFileAtomic(path, b)
}

func (f files) MkdirAll(path string) error {
	if err := f.t.reach(fault.Mkdir, path); err != nil {
		return err
	}
	return f.fs.MkdirAll(path)
}

func (f files) ReadDir(path string) ([]fs.DirEntry, error) {
	if err := f.t.reach(fault.List, path); err != nil {
		return nil, err
	}
	return f.fs.ReadDir(path)
}

func (f files) Remove(path string) error {
	if err := f.t.reach(fault.Remove, path); err != nil {
		return err
	}
	return f.fs.Remove(path)
}

func (f files) Rename(from, to string) error {
	if err := f.t.reach(fault.Rename, from); err != nil {
		return err
	}
	return f.fs.Rename(from, to)
}

func (f files) SyncDir(path string) error {
	a := f.t.act(fault.Sync, path, 0, 0)
	if a.Err != nil || a.Drop {
		return failed(fault.Sync, path, a.Err)
	}
	return f.fs.SyncDir(path)
}

func (f files) Lock(path, holder string) (io.Closer, error) {
	if err := f.t.reach(fault.Lock, path); err != nil {
		return nil, err
	}
	return f.fs.Lock(path, holder)
}

func (f files) Room(path string) (fsio.Room, error) {
	a := f.t.act(fault.Free, path, 0, 0)
	if a.Err != nil {
		return fsio.Room{}, failed(fault.Free, path, a.Err)
	}
	room, err := f.room(path)
	if a.Full {
		room.FreeBytes = 0
	}
	return room, err
}

func (f files) room(path string) (fsio.Room, error) {
	if f.t.totalBytes == 0 {
		return f.fs.Room(path)
	}
	used, err := f.fs.PhysicalBytes(f.t.root)
	return fsio.Room{TotalBytes: f.t.totalBytes, FreeBytes: max(0, f.t.totalBytes-used)}, err
}

func (f files) PhysicalBytes(path string) (int64, error) {
	if err := f.t.reach(fault.Stat, path); err != nil {
		return 0, err
	}
	return f.fs.PhysicalBytes(path)
}

// file is an open segment.
type file struct {
	fsio.File
	t    tree
	path string
}

// ReadVec implements fsio.File, as do all methods below.
func (f *file) ReadVec(a, b []byte, offset int64) error {
	act := f.t.act(fault.Read, f.path, offset, int64(len(a)+len(b)))
	if act.Err != nil {
		return failed(fault.Read, f.path, act.Err)
	}
	if err := f.File.ReadVec(a, b, offset); err != nil {
		return err
	}
	if len(b) > 0 {
		act.FlipBits(b)
	} else {
		act.FlipBits(a)
	}
	return nil
}

func (f *file) WriteVec(a, b []byte, offset int64) error {
	n := len(a) + len(b)
	act := f.t.act(fault.Write, f.path, offset, int64(n))
	switch {
	case act.Err != nil:
		return failed(fault.Write, f.path, act.Err)
	case act.Drop:
		return nil
	case act.Torn:
		both := store.AlignedBuffer(n)
		copy(both[copy(both, a):], b)
		if part := act.TornBytes(n); part > 0 {
			_ = f.File.WriteVec(both[:part], nil, offset)
		}
		return failed(fault.Write, f.path, fault.ErrTorn)
	case act.Flip > 0:
		both := store.AlignedBuffer(n)
		copy(both[copy(both, a):], b)
		act.FlipBits(both)
		return f.File.WriteVec(both, nil, offset)
	}
	return f.File.WriteVec(a, b, offset)
}

func (f *file) Allocate(size int64) error {
	if err := f.t.reach(fault.Allocate, f.path); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

func (f *file) Datasync() error {
	a := f.t.act(fault.Sync, f.path, 0, 0)
	if a.Err != nil || a.Drop {
		return failed(fault.Sync, f.path, a.Err)
	}
	return f.File.Datasync()
}

func (f *file) Size() (int64, error) {
	if err := f.t.reach(fault.Stat, f.path); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f *file) PhysicalBytes() (int64, error) {
	if err := f.t.reach(fault.Stat, f.path); err != nil {
		return 0, err
	}
	return f.File.PhysicalBytes()
}
