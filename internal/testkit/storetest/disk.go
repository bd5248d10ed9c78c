// Package storetest has a disk that tests of whole daemons and engines put under a store: real
// files whose operations fail, hang or are slow at the test's command.
package storetest

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/record"
)

// Kind is what an operation on a segment does.
type Kind int

// The operations that a test can act on.
const (
	Read Kind = iota
	Write
	Allocate
	Sync
)

// Op is one operation on a segment file.
type Op struct {
	Kind Kind
	// Bytes are read, written or allocated.
	Bytes int
	// Shard is that of the record which begins with what was read; set says that one does.
	Shard connector.Shard
	Set   bool
}

// Disk is the operating system's file system with a hook. The zero value has none. It is safe for
// concurrent use.
type Disk struct {
	hook atomic.Pointer[func(Op) error]
}

// Hook makes the disk call f after each read of a segment and before every other operation on
// one. The operation fails with f's error, and takes as long as f does. nil removes the hook.
func (d *Disk) Hook(f func(Op) error) {
	if f == nil {
		d.hook.Store(nil)
		return
	}
	d.hook.Store(&f)
}

// Under returns o with the disk under its segments, and without the measuring of it.
func (d *Disk) Under(o disk.Options) disk.Options {
	o.Calibrate = false
	return o.WithFS(files{fsio.OS{}, d}, vfs.Default)
}

func (d *Disk) reach(op Op) error {
	if f := d.hook.Load(); f != nil {
		return (*f)(op)
	}
	return nil
}

// files are the files of a Disk.
type files struct {
	fsio.FS
	disk *Disk
}

// OpenFile implements fsio.FS.
func (f files) OpenFile(path string, create, direct bool) (fsio.File, error) {
	opened, err := f.FS.OpenFile(path, create, direct)
	if err != nil {
		return nil, err
	}
	return &file{opened, f.disk}, nil
}

type file struct {
	fsio.File
	disk *Disk
}

// ReadVec implements fsio.File.
func (f *file) ReadVec(a, b []byte, offset int64) error {
	if err := f.File.ReadVec(a, b, offset); err != nil {
		return err
	}
	op := Op{Kind: Read, Bytes: len(a) + len(b)}
	var r record.Header
	if len(a) >= record.HeaderBytes && r.Decode(a[:record.HeaderBytes]) == nil {
		op.Shard, op.Set = r.Shard, true
	}
	return f.disk.reach(op)
}

// WriteVec implements fsio.File.
func (f *file) WriteVec(a, b []byte, offset int64) error {
	if err := f.disk.reach(Op{Kind: Write, Bytes: len(a) + len(b)}); err != nil {
		return err
	}
	return f.File.WriteVec(a, b, offset)
}

// Allocate implements fsio.File.
func (f *file) Allocate(size int64) error {
	if err := f.disk.reach(Op{Kind: Allocate, Bytes: int(size)}); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

// Datasync implements fsio.File.
func (f *file) Datasync() error {
	if err := f.disk.reach(Op{Kind: Sync}); err != nil {
		return err
	}
	return f.File.Datasync()
}
