// Package stamp keeps a note beside the journal of how far the journal was durable. A
// journal that lost its end, or was replaced by an older copy of itself, looks like one
// that ended there; the stamp tells the difference.
package stamp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/record"
)

// Stamp is what was durable when it was written.
type Stamp struct {
	Store record.StoreID
	// Opens is how often the store was opened, Barrier the number of the last barrier,
	// Records how many records the store held.
	Opens, Barrier, Records uint64
}

// ErrUnknown says that neither sector of a stamp file can be read.
var ErrUnknown = errors.New("stamp is damaged")

const (
	magic       = "KVCNSTM1"
	sectorBytes = fsio.Align
	// sectors are written in turn: a write that is cut off leaves the other one.
	sectors = 2

	offVersion = 8
	offStore   = 16
	offOpens   = 32
	offBarrier = 40
	offRecords = 48
	offSum     = sectorBytes - 8

	version = 1
)

// File is an open stamp file. It is used by one goroutine at a time.
type File struct {
	f   fsio.File
	buf []byte
}

// Open opens a stamp file and returns the newer of its stamps. The error is [ErrUnknown] if
// the file can be written and has no intact stamp; the file is open then too.
func Open(fs fsio.FS, path string, direct bool) (*File, Stamp, error) {
	f, err := fs.OpenFile(path, false, direct)
	if err != nil {
		return nil, Stamp{}, err
	}
	out := &File{f: f, buf: store.AlignedBuffer(sectorBytes)}
	var newest Stamp
	found := false
	var errs []error
	for i := range int64(sectors) {
		var s Stamp
		err := f.ReadVec(out.buf, nil, i*sectorBytes)
		if err == nil {
			err = s.decode(out.buf)
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case !found || s.Barrier > newest.Barrier:
			newest, found = s, true
		}
	}
	if !found {
		return out, Stamp{}, fmt.Errorf("%w: %w", ErrUnknown, errors.Join(errs...))
	}
	return out, newest, nil
}

// Create makes a stamp file that has no stamp yet.
func Create(fs fsio.FS, path string, direct bool) (*File, error) {
	f, err := fs.OpenFile(path, true, direct)
	if err != nil {
		return nil, err
	}
	if err = f.Allocate(sectors * sectorBytes); err == nil {
		err = fs.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), fs.Remove(path))
	}
	return &File{f: f, buf: store.AlignedBuffer(sectorBytes)}, nil
}

// Write replaces the older stamp. It does not wait until the stamp is durable: after a loss
// of power an older stamp vouches for less, which is safe, and the sync of the next
// barrier takes it along.
func (f *File) Write(s Stamp) error {
	s.encode(f.buf)
	return f.f.WriteVec(f.buf, nil, int64(s.Barrier%sectors)*sectorBytes)
}

// Sync makes the stamp durable.
func (f *File) Sync() error { return f.f.Datasync() }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

func (s *Stamp) encode(b []byte) {
	clear(b)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint16(b[offVersion:], version)
	copy(b[offStore:], s.Store[:])
	le.PutUint64(b[offOpens:], s.Opens)
	le.PutUint64(b[offBarrier:], s.Barrier)
	le.PutUint64(b[offRecords:], s.Records)
	le.PutUint64(b[offSum:], xxh3.Hash(b[:offSum]))
}

func (s *Stamp) decode(b []byte) error {
	le := binary.LittleEndian
	if string(b[:len(magic)]) != magic || le.Uint64(b[offSum:]) != xxh3.Hash(b[:offSum]) || le.Uint16(b[offVersion:]) != version {
		return errors.New("sector has no intact stamp")
	}
	copy(s.Store[:], b[offStore:])
	s.Opens, s.Barrier, s.Records = le.Uint64(b[offOpens:]), le.Uint64(b[offBarrier:]), le.Uint64(b[offRecords:])
	return nil
}
