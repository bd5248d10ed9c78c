package shadow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// lockName is the file that a process which has a store open holds the lock of.
const lockName = "LOCK"

// smallBytes is what a file may have to be copied: more than any that the store replaces as a whole.
const smallBytes = 64 << 10

// copied is a [fsio.FS] of a copy. Small files are copied, large ones shadowed: they are read where they lie, and what is
// written to them goes to a file without blocks in the copy.
type copied struct {
	fsio.OS
	dir, temp string
	lock      *os.File

	mu sync.Mutex
	// shadows are the shadowed files by their path in the copy.
	shadows map[string]*shadow
}

var _ fsio.FS = (*copied)(nil)

func newCopy(ctx context.Context, dir, tempDir string) (c *copied, err error) {
	c = &copied{dir: filepath.Clean(dir), shadows: make(map[string]*shadow)}
	if c.lock, err = lockShared(filepath.Join(dir, lockName)); err != nil {
		return nil, err
	}
	if c.temp, err = os.MkdirTemp(tempDir, "kvconn-fsck-"); err != nil {
		return nil, errors.Join(err, c.unlock())
	}
	if err = c.take(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// lockShared keeps daemons out without a mark in the file. A store without the file has never been open.
func lockShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if fsio.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil || errors.Is(err, unix.EISDIR) {
		return f, nil
	}
	holder, _ := io.ReadAll(io.LimitReader(f, 512))
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: %w", recovery.ErrInUse, &fsio.LockedError{Path: path, Holder: strings.TrimSpace(string(holder))})
	}
	return nil, err
}

func (c *copied) unlock() error {
	if c.lock == nil {
		return nil
	}
	return c.lock.Close() // which ends the lock
}

// close removes the copy and lets daemons in.
func (c *copied) close() error { return errors.Join(os.RemoveAll(c.temp), c.unlock()) }

// take copies what the store's directory holds. Directories that are not the store's stay out.
func (c *copied) take(ctx context.Context) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(c.dir, e.Name()), filepath.Join(c.temp, e.Name())
		info, err := os.Stat(source) // a directory may be a link to another disk
		if fsio.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		switch name := e.Name(); {
		case !info.IsDir():
			err = c.takeFile(source, target, info, false)
		case name == recovery.JournalDir:
			err = c.takeDir(ctx, source, target, true)
		case name == recovery.SegmentDir, name == recovery.NamespaceDir, fsio.IsAside(name):
			err = c.takeDir(ctx, source, target, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeDir copies a directory; whole says that its files are not shadowed.
func (c *copied) takeDir(ctx context.Context, from, to string, whole bool) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = c.takeDir(ctx, source, target, whole)
		} else if info, infoErr := e.Info(); infoErr == nil {
			err = c.takeFile(source, target, info, whole)
		} else if !fsio.IsNotExist(infoErr) {
			err = infoErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeFile copies a file, or shadows one that is large. Sockets and links are of no store.
func (c *copied) takeFile(source, target string, info os.FileInfo, whole bool) error {
	switch {
	case !info.Mode().IsRegular():
		return nil
	case !whole && info.Size() > smallBytes:
		return c.shadow(source, target, info.Size())
	}
	return copyFile(source, target)
}

func (c *copied) shadow(source, target string, size int64) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	c.shadows[target] = &shadow{source: source, size: size, changed: make(map[int64]bool)}
	return errors.Join(f.Truncate(size), f.Close())
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// OpenFile implements [fsio.FS].
func (c *copied) OpenFile(path string, create, direct bool) (fsio.File, error) {
	c.mu.Lock()
	s := c.shadows[filepath.Clean(path)]
	c.mu.Unlock()
	if s == nil || create {
		return c.OS.OpenFile(path, create, direct)
	}
	source, err := os.Open(s.source)
	if err != nil {
		return nil, err
	}
	changes, err := c.OS.OpenFile(path, false, false)
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	return &file{shadow: s, original: source, changes: changes}, nil
}

// ReadFile implements [fsio.FS].
func (c *copied) ReadFile(path string) ([]byte, error) {
	c.mu.Lock()
	s := c.shadows[filepath.Clean(path)]
	c.mu.Unlock()
	if s != nil { // such files are made with WriteFileAtomic, which leaves no shadow
		return c.OS.ReadFile(s.source)
	}
	return c.OS.ReadFile(path)
}

// WriteFileAtomic implements [fsio.FS].
func (c *copied) WriteFileAtomic(path string, b []byte) error {
	err := c.OS.WriteFileAtomic(path, b)
	if err == nil {
		c.move(path, "")
	}
	return err
}

// Remove implements [fsio.FS].
func (c *copied) Remove(path string) error {
	err := c.OS.Remove(path)
	if err == nil {
		c.move(path, "")
	}
	return err
}

// Rename implements [fsio.FS].
func (c *copied) Rename(from, to string) error {
	err := c.OS.Rename(from, to)
	if err == nil {
		c.move(to, "")
		c.move(from, to)
	}
	return err
}

// move follows files that have another name now, or none if to is empty.
func (c *copied) move(from, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from = filepath.Clean(from)
	for path, s := range c.shadows {
		rest, below := strings.CutPrefix(path, from)
		if !below || rest != "" && rest[0] != filepath.Separator {
			continue
		}
		delete(c.shadows, path)
		if to != "" {
			c.shadows[filepath.Clean(to)+rest] = s
		}
	}
}

// Room implements [fsio.FS]: that of the original.
func (c *copied) Room(path string) (fsio.Room, error) {
	original := filepath.Join(c.dir, strings.TrimPrefix(filepath.Clean(path), c.temp))
	if _, err := os.Stat(original); err != nil {
		original = c.dir
	}
	return c.OS.Room(original)
}

// PhysicalBytes implements [fsio.FS].
func (c *copied) PhysicalBytes(path string) (int64, error) {
	total, err := c.OS.PhysicalBytes(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, s := range c.shadows {
		if rest, below := strings.CutPrefix(at, filepath.Clean(path)); below && (rest == "" || rest[0] == filepath.Separator) {
			var st unix.Stat_t
			if unix.Stat(s.source, &st) == nil {
				total += st.Blocks * 512
			}
		}
	}
	return total, err
}
