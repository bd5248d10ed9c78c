package shadow

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

const pageBytes = fsio.Align

// shadow is a file of the store whose changes are kept elsewhere, page by page.
type shadow struct {
	source string
	size   int64 // of the original, in bytes

	mu sync.RWMutex
	// changed are the numbers of the pages that are read from the copy.
	changed map[int64]bool
}

// file is a shadow that is open.
type file struct {
	shadow   *shadow
	original *os.File
	changes  fsio.File
}

// ReadVec implements [fsio.File].
func (f *file) ReadVec(a, b []byte, offset int64) error {
	f.shadow.mu.RLock()
	defer f.shadow.mu.RUnlock()
	if err := f.read(a, offset); err != nil {
		return err
	}
	return f.read(b, offset+int64(len(a)))
}

// read fills b with runs of pages that lie in the same file. The mutex is held.
func (f *file) read(b []byte, offset int64) error {
	for len(b) > 0 {
		changed, n := f.inCopy(offset), min(len(b), int(pageBytes-offset%pageBytes))
		for n < len(b) && f.inCopy(offset+int64(n)) == changed {
			n = min(len(b), n+pageBytes)
		}
		err := f.readRun(b[:n], offset, changed)
		if err != nil {
			return err
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

func (f *file) readRun(b []byte, offset int64, changed bool) error {
	if changed {
		return f.changes.ReadVec(b, nil, offset)
	}
	n, err := f.original.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if size, sizeErr := f.changes.Size(); sizeErr != nil || size < offset+int64(len(b)) {
		return errors.Join(&fs.PathError{Op: "read", Path: f.shadow.source, Err: io.ErrUnexpectedEOF}, sizeErr)
	}
	clear(b[n:]) // the file has grown since
	return nil
}

// inCopy says where a page is read: what lies beyond the original, and what was changed, in the copy.
func (f *file) inCopy(offset int64) bool {
	return offset >= f.shadow.size || f.shadow.changed[offset/pageBytes]
}

// WriteVec implements [fsio.File].
func (f *file) WriteVec(a, b []byte, offset int64) error {
	f.shadow.mu.Lock()
	defer f.shadow.mu.Unlock()
	end := offset + int64(len(a)+len(b))
	// What is left of the first and the last page comes from the original.
	for _, at := range []int64{offset, end} {
		if at%pageBytes == 0 || f.inCopy(at) {
			continue
		}
		page := make([]byte, pageBytes)
		n, err := f.original.ReadAt(page, at/pageBytes*pageBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := f.changes.WriteVec(page[:n], nil, at/pageBytes*pageBytes); err != nil {
			return err
		}
	}
	if err := f.changes.WriteVec(a, b, offset); err != nil {
		return err
	}
	for page := offset / pageBytes; page*pageBytes < end; page++ {
		f.shadow.changed[page] = true
	}
	return nil
}

// Allocate implements [fsio.File]. Blocks of the copy are allocated as they are written.
func (f *file) Allocate(size int64) error {
	if now, err := f.changes.Size(); err != nil || now >= size {
		return err
	}
	return f.changes.WriteVec([]byte{0}, nil, size-1)
}

// Datasync implements [fsio.File]: the copy is not meant to last.
func (f *file) Datasync() error { return nil }

// Size implements [fsio.File].
func (f *file) Size() (int64, error) { return f.changes.Size() }

// PhysicalBytes implements [fsio.File]: those of the original, and of what the file has grown by.
func (f *file) PhysicalBytes() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.original.Fd()), &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: f.shadow.source, Err: err}
	}
	size, err := f.changes.Size()
	return st.Blocks*512 + max(0, size-f.shadow.size), err
}

// Close implements [fsio.File].
func (f *file) Close() error { return errors.Join(f.original.Close(), f.changes.Close()) }
