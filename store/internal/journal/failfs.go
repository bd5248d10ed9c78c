package journal

import (
	"errors"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failFS stands between Pebble and the file system. Pebble answers some failed writes (a
// log that cannot be made, a manifest that cannot be written) by ending the process, in
// goroutines and at places where nothing can be recovered. Here such a failure ends the
// journal instead: it is marked as failed, and the goroutine that ran into it stays where
// it is for good. Nothing is asked of Pebble after that.
type failFS struct {
	vfs.FS
	j *Journal
}

// stop ends the journal if err is a failure of the disk.
func (j *Journal) stop(op, path string, err error) {
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) {
		return
	}
	j.fail(op + " " + path + ": " + err.Error())
	select {}
}

// wrap passes a file on, wrapped.
func (f failFS) wrap(op, name string, file vfs.File, err error) (vfs.File, error) {
	f.j.stop(op, name, err)
	if err != nil {
		return nil, err
	}
	return failFile{file, f.j, name}, nil
}

// Create implements vfs.FS, as do all methods below.
func (f failFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap("create", name, file, err)
}

func (f failFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.wrap("open", name, file, err)
}

func (f failFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap("open", name, file, err)
}

func (f failFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, c)
	return f.wrap("reuse", to, file, err)
}

func (f failFS) Link(from, to string) error {
	err := f.FS.Link(from, to)
	f.j.stop("link", to, err)
	return err
}

func (f failFS) Remove(name string) error {
	err := f.FS.Remove(name)
	f.j.stop("remove", name, err)
	return err
}

func (f failFS) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	f.j.stop("rename", to, err)
	return err
}

func (f failFS) MkdirAll(name string, perm os.FileMode) error {
	err := f.FS.MkdirAll(name, perm)
	f.j.stop("mkdir", name, err)
	return err
}

// Unwrap lets Pebble find out what is below.
func (f failFS) Unwrap() vfs.FS { return f.FS }

type failFile struct {
	vfs.File
	j    *Journal
	name string
}

func (f failFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	f.j.stop("write", f.name, err)
	return n, err
}

func (f failFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(b, at)
	f.j.stop("write", f.name, err)
	return n, err
}

func (f failFile) Preallocate(at, length int64) error {
	err := f.File.Preallocate(at, length)
	f.j.stop("preallocate", f.name, err)
	return err
}

func (f failFile) Sync() error {
	err := f.File.Sync()
	f.j.stop("sync", f.name, err)
	return err
}

func (f failFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	f.j.stop("sync", f.name, err)
	return full, err
}

func (f failFile) SyncData() error {
	err := f.File.SyncData()
	f.j.stop("sync", f.name, err)
	return err
}
