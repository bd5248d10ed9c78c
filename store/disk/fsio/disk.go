// Package fsio is the seam between the store and the operating system: aligned buffers,
// and files that are preallocated and read and written at offsets past the page cache.
package fsio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"github.com/kvconn/kvconn/store"
)

// Align is the alignment in bytes that every offset, length and buffer address of direct
// I/O has.
const Align = store.BufferAlign

// AlignUp rounds n up to a multiple of [Align].
func AlignUp(n int) int { return store.PayloadBufferSize(n) }

// Aligned reports whether b starts at a multiple of [Align]. An empty slice does not.
func Aligned(b []byte) bool {
	return cap(b) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%Align == 0
}

// ErrNoDirectIO says that a file system has no O_DIRECT.
var ErrNoDirectIO = errors.New("file system has no direct I/O")

// FS is the part of a file system that the store uses for its own files. The journal
// brings its own.
type FS interface {
	// OpenFile opens an existing file for reading and writing, or makes it if create is
	// set (and fails if it is there). With direct set the page cache is bypassed and
	// ErrNoDirectIO reported where that is impossible.
	OpenFile(path string, create, direct bool) (File, error)
	// ReadFile returns a small file whole, WriteFileAtomic replaces it durably: after a
	// crash either the old or the new content is there.
	ReadFile(path string) ([]byte, error)
	WriteFileAtomic(path string, b []byte) error
	MkdirAll(path string) error
	ReadDir(path string) ([]fs.DirEntry, error)
	Remove(path string) error
	Rename(from, to string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(path string) error
	// Lock takes the lock of a directory by the file at path, which then says who has it.
	// The lock ends with the process. It returns a *LockedError while another has it.
	Lock(path, holder string) (io.Closer, error)
	// Room tells how large the file system of path is and what of it is free.
	Room(path string) (Room, error)
	// PhysicalBytes is what the tree under path occupies.
	PhysicalBytes(path string) (int64, error)
}

// Room is the size of a file system. FreeBytes is what an unprivileged process may still
// allocate, Device tells file systems apart.
type Room struct {
	TotalBytes int64
	FreeBytes  int64
	Device     uint64
}

// File is an open file. Its methods may be called concurrently.
type File interface {
	// ReadVec fills a and then b from offset on, in one request where the operating
	// system has one; b may be empty. It returns io.ErrUnexpectedEOF at the end of the
	// file.
	ReadVec(a, b []byte, offset int64) error
	// WriteVec writes a and then b at offset.
	WriteVec(a, b []byte, offset int64) error
	// Allocate gives the file size bytes of allocated space.
	Allocate(size int64) error
	// Datasync makes everything written durable.
	Datasync() error
	// Size is the length in bytes, PhysicalBytes what is allocated.
	Size() (int64, error)
	PhysicalBytes() (int64, error)
	Close() error
}

// IsNotExist reports whether an error of an [FS] says that a file is not there.
func IsNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// LockedError says that another process has a lock.
type LockedError struct {
	Path   string
	Holder string // what the other process wrote about itself
}

// Error implements error.
func (e *LockedError) Error() string { return fmt.Sprintf("%s is held by %s", e.Path, e.Holder) }
