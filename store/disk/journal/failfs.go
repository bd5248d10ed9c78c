package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failFS stands between Pebble and the file system. Pebble answers some failed writes (a
// log that cannot be made, a manifest that cannot be written) by ending the process, in
// goroutines and at places where nothing can be recovered. Here such a failure ends the
// generation instead: it is marked as failed, and the goroutine that ran into it stays where
// it is for good. Whatever else Pebble then begins to change stays too: by then the next
// generation may be at work. Reads go on until the generation is discarded.
type failFS struct {
	vfs.FS
	g *generation
}

// openFiles are the files that Pebble has open, and its lock, so that they can be closed without
// it.
type openFiles struct {
	mu   sync.Mutex
	open map[io.Closer]bool
	// busy is the number of operations in the file system. A descriptor must not be closed
	// under one: its number may be another file's next.
	busy atomic.Int64
}

func (o *openFiles) add(f io.Closer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = make(map[io.Closer]bool)
	}
	o.open[f] = true
}

func (o *openFiles) remove(f io.Closer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.open[f]
	delete(o.open, f)
	return was
}

// closeAll closes the files that are left. No operation begins any more; if one hangs in the
// file system they stay open.
func (o *openFiles) closeAll() {
	const tries, pause = 1000, time.Millisecond
	for n := 0; o.busy.Load() > 0; n++ {
		if n == tries {
			return
		}
		time.Sleep(pause)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.open {
		_ = f.Close()
	}
	clear(o.open)
}

// change runs an operation that changes something, and parks the goroutine if it fails.
func (g *generation) change(op, path string, f func() error) error {
	g.files.busy.Add(1)
	if err := g.failure(); err != nil {
		g.files.busy.Add(-1)
		g.park(err)
	}
	err := f()
	g.files.busy.Add(-1)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
		g.park(fmt.Errorf("%s %s: %w", op, path, err))
	}
	return err
}

// read runs an operation that changes nothing.
func (g *generation) read(f func() error) error {
	g.files.busy.Add(1)
	if g.discarded.Load() {
		g.files.busy.Add(-1)
		g.park(errGivenUp)
	}
	err := f()
	g.files.busy.Add(-1)
	return err
}

func (f failFS) opened(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	f.g.files.add(file)
	return failFile{file, f.g, name}, nil
}

// Create implements vfs.FS, as do all methods below.
func (f failFS) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.g.change("create", name, func() error { file, err = f.FS.Create(name, c); return err })
	return f.opened(name, file, err)
}

func (f failFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (file vfs.File, err error) {
	err = f.g.change("open", name, func() error { file, err = f.FS.OpenReadWrite(name, c, opts...); return err })
	return f.opened(name, file, err)
}

func (f failFS) OpenDir(name string) (file vfs.File, err error) {
	err = f.g.change("open", name, func() error { file, err = f.FS.OpenDir(name); return unreadable(err) })
	return f.opened(name, file, err)
}

func (f failFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.g.change("reuse", to, func() error { file, err = f.FS.ReuseForWrite(from, to, c); return err })
	return f.opened(to, file, err)
}

func (f failFS) Open(name string, opts ...vfs.OpenOption) (file vfs.File, err error) {
	err = f.g.read(func() error { file, err = f.FS.Open(name, opts...); return err })
	return f.opened(name, file, err)
}

// Link is used to take in tables that are written already. Pebble copies them if it fails.
func (f failFS) Link(from, to string) error {
	return f.g.read(func() error { return f.FS.Link(from, to) })
}

func (f failFS) Remove(name string) error {
	return f.g.change("remove", name, func() error { return f.FS.Remove(name) })
}

func (f failFS) Rename(from, to string) error {
	return f.g.change("rename", to, func() error { return f.FS.Rename(from, to) })
}

func (f failFS) MkdirAll(name string, perm os.FileMode) error {
	return f.g.change("mkdir", name, func() error { return f.FS.MkdirAll(name, perm) })
}

// List fails the generation as a change does: a database whose opening ends with an error has
// its caches taken from under flushes that it began, and these would end the process.
func (f failFS) List(dir string) (names []string, err error) {
	err = f.g.change("list", dir, func() error { names, err = f.FS.List(dir); return unreadable(err) })
	return names, err
}

// unreadable marks the error of an operation that only reads.
func unreadable(err error) error {
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}

// Lock has the lock's descriptor closed with the files: else each generation that fails would
// keep one.
func (f failFS) Lock(name string) (io.Closer, error) {
	lock := &failLock{g: f.g}
	err := f.g.read(func() (err error) { lock.held.Closer, err = f.FS.Lock(name); return err })
	if err != nil {
		return nil, err
	}
	f.g.files.add(&lock.held)
	return lock, nil
}

type failLock struct {
	g    *generation
	held struct{ io.Closer }
}

// Close lets go of the lock.
func (l *failLock) Close() error {
	if !l.g.files.remove(&l.held) {
		return nil // closed under it
	}
	return l.held.Close()
}

// Unwrap lets Pebble find out what is below.
func (f failFS) Unwrap() vfs.FS { return f.FS }

type failFile struct {
	vfs.File
	g    *generation
	name string
}

func (f failFile) Write(b []byte) (n int, err error) {
	err = f.g.change("write", f.name, func() error { n, err = f.File.Write(b); return err })
	return n, err
}

func (f failFile) WriteAt(b []byte, at int64) (n int, err error) {
	err = f.g.change("write", f.name, func() error { n, err = f.File.WriteAt(b, at); return err })
	return n, err
}

func (f failFile) Preallocate(at, length int64) error {
	return f.g.change("preallocate", f.name, func() error { return f.File.Preallocate(at, length) })
}

func (f failFile) Sync() error {
	return f.g.change("sync", f.name, f.File.Sync)
}

func (f failFile) SyncTo(length int64) (full bool, err error) {
	err = f.g.change("sync", f.name, func() error { full, err = f.File.SyncTo(length); return err })
	return full, err
}

func (f failFile) SyncData() error {
	return f.g.change("sync", f.name, f.File.SyncData)
}

func (f failFile) Read(b []byte) (n int, err error) {
	err = f.g.read(func() error { n, err = f.File.Read(b); return err })
	return n, err
}

func (f failFile) ReadAt(b []byte, at int64) (n int, err error) {
	err = f.g.read(func() error { n, err = f.File.ReadAt(b, at); return err })
	return n, err
}

func (f failFile) Prefetch(at, length int64) error {
	return f.g.read(func() error { return f.File.Prefetch(at, length) })
}

func (f failFile) Close() error {
	if !f.g.files.remove(f.File) {
		return nil // closed under it
	}
	return f.File.Close()
}
