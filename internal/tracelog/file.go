package tracelog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// bufferBytes is how much is written at one time.
const bufferBytes = 256 << 10

// file is the file of a trace, which is begun again when it is full. It never ends in the middle of a line.
type file struct {
	path     string
	maxBytes int64
	f        *os.File // nil if it could not be made
	written  int64
	// pending are whole lines that are not written yet, lines their number.
	pending []byte
	lines   uint64
}

// create makes the file. What is there already is renamed: a trace begins at time 0, so it cannot be added to.
func create(path string, maxBytes int64) (*file, error) {
	f := &file{path: path, maxBytes: maxBytes}
	return f, f.begin()
}

// begin makes a new file, and keeps the one before under another name.
func (f *file) begin() error {
	info, err := os.Lstat(f.path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("record a trace: %s is no file", f.path)
	case err == nil && info.Size() > 0:
		err = os.Rename(f.path, f.path+".1")
	case err == nil:
		err = os.Remove(f.path) // it may have another mode
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err == nil {
		// Hashes of prompts are for the daemon's user alone.
		f.f, err = os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record a trace: %w", err)
	}
	f.written = 0
	return nil
}

// add adds a line. It returns how many lines that brought to the file, and how many it lost.
func (f *file) add(line []byte) (written, lost uint64, err error) {
	if size := f.written + int64(len(f.pending)); size > 0 && size+int64(len(line)) > f.maxBytes {
		written, lost, err = f.flush()
		err = errors.Join(err, f.close())
	}
	f.pending = append(f.pending, line...)
	f.lines++
	if len(f.pending) >= bufferBytes {
		w, l, e := f.flush()
		written, lost, err = written+w, lost+l, errors.Join(err, e)
	}
	return written, lost, err
}

// flush writes the lines that wait. What cannot be written is lost: the next lines follow the last whole one.
func (f *file) flush() (written, lost uint64, err error) {
	n := f.lines
	if n == 0 {
		return 0, 0, nil
	}
	defer func() { f.pending, f.lines = f.pending[:0], 0 }()
	if f.f == nil {
		if err := f.begin(); err != nil {
			return 0, n, err
		}
	}
	if _, err := f.f.WriteAt(f.pending, f.written); err != nil {
		return 0, n, errors.Join(fmt.Errorf("record a trace: %w", err), f.f.Truncate(f.written))
	}
	f.written += int64(len(f.pending))
	return n, 0, nil
}

func (f *file) close() error {
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f, f.written = nil, 0
	return err
}
