package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sync/errgroup"

	iofs "io/fs"
	"path/filepath"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/record"
)

// segmentFile is what an opening store found of a segment.
type segmentFile struct {
	path string
	id   uint32
	file fsio.File // nil if it cannot be opened, or has been handed on or closed
	size int64
	head format.Segment
	// openErr says why the file cannot be opened, headErr why its header tells nothing.
	openErr, headErr error
	// readErr is set if the disk did not give what tells the segment's geometry: nothing can
	// be said of what is in the file.
	readErr error
	// unread is set if the records of the segment must be read from their headers, frozen
	// if it takes no new ones.
	unread, frozen bool
	// dismissed is set if the file is not used.
	dismissed bool
}

// found is the segment in the file, whose geometry is settled.
func (f *segmentFile) found() segment.Found {
	return segment.Found{Segment: f.head, File: f.file, Path: f.path, Unread: f.unread, Frozen: f.frozen}
}

// untold reports whether the disk did not tell what is in the file.
func (f *segmentFile) untold() bool { return f.openErr != nil || f.readErr != nil }

func (f *segmentFile) close() {
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}

// inspectors is how many segment files are opened at one time.
const inspectors = 16

// listSegments returns the paths of the segment files.
func (s *State) listSegments() ([]*segmentFile, error) {
	dir := filepath.Join(s.opts.Dir, SegmentDir)
	var entries []iofs.DirEntry
	err := fsio.Again(func() (err error) { entries, err = s.opts.FS.ReadDir(dir); return err })
	if err != nil {
		return nil, fmt.Errorf("list %s: %w: %w", dir, ErrSegmentsMissing, err)
	}
	var out []*segmentFile
	for _, e := range entries {
		if id, ok := segment.IDOf(e.Name()); ok {
			out = append(out, &segmentFile{path: filepath.Join(dir, e.Name()), id: id})
		}
	}
	return out, nil
}

// inspectSegments opens the segment files and reads their headers.
func (s *State) inspectSegments(ctx context.Context) ([]*segmentFile, error) {
	files, err := s.listSegments()
	if err != nil {
		return nil, err
	}
	s.opts.Report.Begin("segments", int64(len(files)))
	var inspecting errgroup.Group
	inspecting.SetLimit(inspectors)
	for _, f := range files {
		inspecting.Go(func() error {
			if ctx.Err() == nil {
				s.inspect(f)
				s.opts.Report.Done(1)
			}
			return nil
		})
	}
	_ = inspecting.Wait()
	for _, f := range files {
		if isOneOf(f.openErr, scarce) {
			return files, fmt.Errorf("open segment: %w", f.openErr)
		}
	}
	return files, ctx.Err()
}

func (s *State) inspect(f *segmentFile) {
	buf := store.AlignedBuffer(record.HeaderBytes)
	f.openErr = fsio.Again(func() error { return s.openFile(f) })
	if f.openErr != nil {
		f.headErr = f.openErr
		return
	}
	// The end of the file says that the file was cut, not that the disk fails.
	f.readErr = fsio.Again(func() error {
		if f.headErr = f.file.ReadVec(buf, nil, 0); errors.Is(f.headErr, io.ErrUnexpectedEOF) {
			return nil
		}
		return f.headErr
	})
	if f.headErr != nil {
		return
	}
	f.headErr = f.head.Decode(buf)
	if f.headErr != nil && !errors.Is(f.headErr, record.ErrBad) && !errors.Is(f.headErr, record.ErrBlank) {
		// Intact, and not for this program.
		f.openErr = f.headErr
		f.close()
	}
}

// openFile opens a segment file and asks for its size.
func (s *State) openFile(f *segmentFile) (err error) {
	if f.file, err = s.opts.FS.OpenFile(f.path, false, s.Direct); err != nil {
		f.file = nil
		return err
	}
	if f.size, err = f.file.Size(); err != nil {
		f.close()
	}
	return err
}

// errUseless says that a segment file holds nothing for this store.
var errUseless = errors.New("neither the segment's header nor any of its records can be read")

// errBlank says that a segment file never held a record.
var errBlank = errors.New("segment was never written to")

// guessSegment finds the geometry of a segment whose header is damaged in the first intact
// header of a record: it says which slot it is in and how large the payload is.
func (s *State) guessSegment(f *segmentFile) (format.Segment, error) {
	const stretch = 1 << 20
	buf := store.AlignedBuffer(stretch)
	blank, readErr := true, f.readErr
	for at := int64(record.HeaderBytes); at+record.HeaderBytes <= f.size; {
		n := min(stretch, (f.size-at)&^(fsio.Align-1))
		if f.file.ReadVec(buf[:n], nil, at) != nil {
			n = record.HeaderBytes
			if err := f.file.ReadVec(buf[:n], nil, at); err != nil {
				blank, readErr = false, err
				at += n
				continue
			}
		}
		for from := int64(0); from+record.HeaderBytes <= n; from += record.HeaderBytes {
			page := buf[from : from+record.HeaderBytes]
			var r record.Header
			err := r.Decode(page)
			blank = blank && errors.Is(err, record.ErrBlank)
			if err != nil || r.Store != s.ID || r.SegmentID != f.id {
				continue
			}
			head := format.Segment{Store: s.ID, ID: f.id, SlotBytes: segment.SlotBytes(int(r.PayloadBytes))}
			if r.PayloadBytes == 0 || r.PayloadBytes > store.MaxPayloadBytes || head.Offset(r.Slot) != at+from {
				continue
			}
			head.Slots = uint32((f.size - record.HeaderBytes + head.SlotBytes - 1) / head.SlotBytes)
			f.readErr = nil
			return head, nil
		}
		at += n
	}
	if f.readErr = readErr; readErr != nil {
		return format.Segment{}, readErr // not known to be useless
	}
	if blank && (errors.Is(f.headErr, record.ErrBlank) || f.size < record.HeaderBytes) {
		return format.Segment{}, errBlank
	}
	return format.Segment{}, errUseless
}

// settleHead decides on a segment's geometry: what its header says, else what the journal
// knows, else what the headers of its records tell. known is nil if the journal does not
// vouch for the segment.
func (s *State) settleHead(f *segmentFile, known *format.Segment) error {
	switch {
	case f.openErr != nil:
		return f.openErr
	case f.headErr == nil && (f.head.Store != s.ID || f.head.ID != f.id):
		return fmt.Errorf("%w: its header is of segment %d of store %x", errUseless, f.head.ID, f.head.Store)
	case f.headErr == nil:
		f.unread = f.unread || known == nil || *known != f.head
	case known != nil:
		f.head, f.readErr = *known, nil
		s.rewriteHead(f)
	default:
		head, err := s.guessSegment(f)
		if err != nil {
			return err
		}
		f.head, f.unread = head, true
		s.rewriteHead(f)
	}
	if f.size < f.head.FileBytes() {
		s.opts.Report.Note("segment %d had %d bytes of %d: extended", f.id, f.size, f.head.FileBytes())
		f.unread = true
		if err := f.file.Allocate(f.head.FileBytes()); err != nil {
			s.opts.Report.Note("segment %d cannot be extended (%v): it takes no new records", f.id, err)
			f.frozen = true
		}
	}
	return nil
}

// rewriteHead writes a segment's header again. Where that fails its records are served all
// the same, and it takes no new ones.
func (s *State) rewriteHead(f *segmentFile) {
	b := store.AlignedBuffer(record.HeaderBytes)
	f.head.Encode(b)
	if err := errors.Join(f.file.WriteVec(b, nil, 0), f.file.Datasync()); err != nil {
		s.opts.Report.Note("header of segment %d was damaged (%v) and cannot be written (%v): it takes no new records", f.id, f.headErr, err)
		f.frozen = true
		return
	}
	s.opts.Report.Note("header of segment %d was damaged (%v): written again", f.id, f.headErr)
	f.headErr = nil
}

// dismiss deals with a segment file that is of no use: one that cannot be opened or read stays
// as it is, one that never held a record is removed, any other is set aside.
func (s *State) dismiss(f *segmentFile, why error) {
	f.close()
	f.dismissed = true
	switch {
	case f.untold() && !fsio.IsDir(s.opts.FS, f.path):
		s.opts.Report.Note("segment %d cannot be opened (%v): not used until it can", f.id, why)
	case errors.Is(why, errBlank):
		if err := s.opts.FS.Remove(f.path); err != nil {
			s.opts.Report.Note("segment %d is empty and cannot be removed (%v)", f.id, err)
		}
	default:
		s.opts.Report.Note("segment file %s is of no use (%v): set aside", filepath.Base(f.path), why)
		s.setAside(f.path)
	}
}

// awaited are the segment files that the disk did not give.
func (o *opening) awaited() []*segmentFile {
	return slices.DeleteFunc(slices.Clone(o.files), func(f *segmentFile) bool { return !f.dismissed || !f.untold() })
}
