package fsio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OS is the [FS] of the operating system.
type OS struct{}

var _ FS = OS{}

// OpenFile implements [FS].
func (OS) OpenFile(path string, create, direct bool) (File, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if create {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	if direct {
		flags |= unix.O_DIRECT
	}
	f := &osFile{path: path}
	err := ignoringEINTR(func() (err error) { f.fd, err = unix.Open(path, flags, 0o600); return err })
	if err == unix.EINVAL && direct {
		// The kernel may have made the file before it refused the flag.
		if create {
			_ = unix.Unlink(path)
		}
		return nil, fmt.Errorf("open %s: %w", path, ErrNoDirectIO)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

// ReadFile implements [FS].
func (OS) ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }

// WriteFileAtomic implements [FS].
func (o OS) WriteFileAtomic(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return o.SyncDir(filepath.Dir(path))
}

// MkdirAll implements [FS].
func (OS) MkdirAll(path string) error { return os.MkdirAll(path, 0o700) }

// ReadDir implements [FS].
func (OS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

// Remove implements [FS].
func (OS) Remove(path string) error { return os.Remove(path) }

// Rename implements [FS].
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// SyncDir implements [FS].
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// maxHolderBytes bounds what is read of another process's note.
const maxHolderBytes = 512

// Lock implements [FS].
func (OS) Lock(path, holder string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		note, _ := io.ReadAll(io.LimitReader(f, maxHolderBytes))
		_ = f.Close()
		if err != unix.EWOULDBLOCK {
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		return nil, &LockedError{Path: path, Holder: strings.TrimSpace(string(note))}
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(holder+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return lockedFile{f}, nil
}

// lockedFile is a file that is locked until it is closed.
type lockedFile struct{ *os.File }

// Close implements io.Closer. It ends the lock itself: a process that is being started has a copy of
// the descriptor for a moment, which would keep it.
func (f lockedFile) Close() error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.File.Close())
}

// Room implements [FS].
func (OS) Room(path string) (Room, error) {
	var st unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Statfs(path, &st) }); err != nil {
		return Room{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	var at unix.Stat_t
	if err := unix.Stat(path, &at); err != nil {
		return Room{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Room{TotalBytes: int64(st.Blocks) * st.Frsize, FreeBytes: int64(st.Bavail) * st.Frsize, Device: uint64(at.Dev)}, nil
}

// PhysicalBytes implements [FS]. Files that vanish meanwhile count nothing, nor does what lies
// in a directory that this process may not look into, if that is not path itself.
func (OS) PhysicalBytes(path string) (int64, error) {
	var total int64
	err := filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			if IsNotExist(err) || p != path && errors.Is(err, unix.EACCES) {
				return nil
			}
			return err
		}
		var st unix.Stat_t
		switch err := unix.Lstat(p, &st); err {
		case nil:
			total += st.Blocks * 512
		case unix.ENOENT:
		case unix.EACCES:
			if p == path {
				return &fs.PathError{Op: "stat", Path: p, Err: err}
			}
		default:
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		return nil
	})
	return total, err
}

// osFile calls the kernel by descriptor: os.File would take a lock for each request, and
// its vectored calls allocate.
type osFile struct {
	fd   int
	path string
}

// ReadVec implements [File].
func (f *osFile) ReadVec(a, b []byte, offset int64) error {
	return f.vec(unix.SYS_PREADV, "read", a, b, offset)
}

// WriteVec implements [File].
func (f *osFile) WriteVec(a, b []byte, offset int64) error {
	return f.vec(unix.SYS_PWRITEV, "write", a, b, offset)
}

// vec repeats the request until both slices are used up.
func (f *osFile) vec(trap uintptr, op string, a, b []byte, offset int64) error {
	for len(a)+len(b) > 0 {
		n, err := vecOnce(trap, f.fd, a, b, offset)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			continue
		case err != 0:
			return &fs.PathError{Op: op, Path: f.path, Err: err}
		case n == 0 && op == "read":
			return &fs.PathError{Op: op, Path: f.path, Err: io.ErrUnexpectedEOF}
		case n == 0:
			return &fs.PathError{Op: op, Path: f.path, Err: io.ErrShortWrite}
		}
		offset += int64(n)
		fromA := min(n, len(a))
		a, b = a[fromA:], b[n-fromA:]
	}
	return nil
}

func vecOnce(trap uintptr, fd int, a, b []byte, offset int64) (int, unix.Errno) {
	var iov [2]unix.Iovec
	count := 0
	for _, s := range [2][]byte{a, b} {
		if len(s) > 0 {
			iov[count].Base = unsafe.SliceData(s)
			iov[count].SetLen(len(s))
			count++
		}
	}
	// The kernel takes the offset as two words; on 64-bit systems the low one holds it.
	n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])),
		uintptr(count), uintptr(offset), 0, 0)
	return int(n), errno
}

// Allocate implements [File].
func (f *osFile) Allocate(size int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(f.fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		// Some file systems (NFS, overlay on old ones) cannot preallocate.
		err = unix.Ftruncate(f.fd, size)
	}
	if err != nil {
		return &fs.PathError{Op: "allocate", Path: f.path, Err: err}
	}
	return nil
}

// Datasync implements [File].
func (f *osFile) Datasync() error {
	if err := ignoringEINTR(func() error { return unix.Fdatasync(f.fd) }); err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.path, Err: err}
	}
	return nil
}

// Size implements [File].
func (f *osFile) Size() (int64, error) {
	st, err := f.stat()
	return st.Size, err
}

// PhysicalBytes implements [File].
func (f *osFile) PhysicalBytes() (int64, error) {
	st, err := f.stat()
	return st.Blocks * 512, err
}

func (f *osFile) stat() (st unix.Stat_t, err error) {
	if err := unix.Fstat(f.fd, &st); err != nil {
		return unix.Stat_t{}, &fs.PathError{Op: "stat", Path: f.path, Err: err}
	}
	return st, nil
}

// Close implements [File].
func (f *osFile) Close() error { return unix.Close(f.fd) }

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
