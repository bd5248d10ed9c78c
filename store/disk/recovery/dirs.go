package recovery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// setAside renames a file, or a directory in the place of one, out of the way. A failure
// is not one of the opening: whoever needs the name will meet it.
func (s *State) setAside(path string) {
	if err := fsio.SetAside(s.opts.FS, path); err != nil {
		s.opts.Report.Note("%s cannot be renamed (%v)", filepath.Base(path), err)
	}
}

// makeDirs makes the store's directories. A file that has the name of one is set aside.
func (s *State) makeDirs() error {
	for _, dir := range []string{SegmentDir, NamespaceDir, JournalDir} {
		path := filepath.Join(s.opts.Dir, dir)
		err := fsio.Again(func() error { return s.opts.FS.MkdirAll(path) })
		if err != nil && fsio.IsFile(s.opts.FS, path) {
			s.setAside(path)
			s.opts.Report.Note("%s was not a directory: set aside", dir)
			err = s.opts.FS.MkdirAll(path)
		}
		if err != nil {
			return err
		}
	}
	return fsio.Again(func() error { return s.opts.FS.SyncDir(s.opts.Dir) })
}

// cleanUp removes what an earlier process may have left half done.
func (s *State) cleanUp() {
	fs := s.opts.FS
	remove := func(parts ...string) { _ = fs.Remove(filepath.Join(append([]string{s.opts.Dir}, parts...)...)) }
	remove(SegmentDir, CalibrationScratch)
	remove(SegmentDir, probeFile)
	for _, dir := range []string{"", SegmentDir, NamespaceDir} {
		entries, err := fs.ReadDir(filepath.Join(s.opts.Dir, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				remove(dir, e.Name())
			}
		}
	}
}

func (s *State) lockDir() error {
	if s.opts.Held != nil {
		s.Lock = s.opts.Held
		return nil
	}
	if err := s.opts.FS.MkdirAll(s.opts.Dir); err != nil {
		return err
	}
	name, _ := os.Executable()
	holder := fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(name))
	path := filepath.Join(s.opts.Dir, lockFile)
	if fsio.IsDir(s.opts.FS, path) {
		s.setAside(path)
	}
	lock, err := s.opts.FS.Lock(path, holder)
	var locked *fsio.LockedError
	if errors.As(err, &locked) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	s.Lock = lock
	return err
}

// probeDirect reports whether the file system has direct I/O, and fails if nothing can be
// written at all.
func (s *State) probeDirect() (bool, error) {
	path := filepath.Join(s.opts.Dir, SegmentDir, probeFile)
	direct := true
	f, err := s.opts.FS.OpenFile(path, true, true)
	if errors.Is(err, fsio.ErrNoDirectIO) {
		direct = false
		f, err = s.opts.FS.OpenFile(path, true, false)
	}
	if err != nil {
		return false, err
	}
	err = f.WriteVec(store.AlignedBuffer(fsio.Align), nil, 0)
	return direct, errors.Join(err, f.Close(), s.opts.FS.Remove(path))
}

// findLimits finds out how much the store may occupy.
func (s *State) findLimits(files []*segmentFile) (err error) {
	o := segment.LimitOptions{
		FS: s.opts.FS, Root: s.opts.Dir, Dir: filepath.Join(s.opts.Dir, SegmentDir), MaxBytes: s.opts.MaxBytes,
		MaxPercent:   s.opts.MaxPercent,
		SegmentBytes: s.opts.SegmentBytes, MinFree: s.opts.MinFree,
		CheckOnly: s.opts.CheckOnly, Told: true, Report: s.opts.Report,
	}
	for _, f := range files {
		o.Sizes += f.size
		o.Told = o.Told && !f.untold()
	}
	s.Limits, err = segment.FindLimits(o)
	return err
}

// newSpace returns a space without segments, for an index.
func (s *State) newSpace(o *opening, table *index.Table) *segment.Space {
	return segment.New(segment.Options{
		FS: s.opts.FS, Root: s.opts.Dir, Dir: filepath.Join(s.opts.Dir, SegmentDir), JournalDir: filepath.Join(s.opts.Dir, JournalDir),
		Others: []string{NamespaceDir},
		Fixed:  map[string]bool{lockFile: true, FormatFile: true, StampFile: true, CalibrationFile: true, SnapshotFile: true, SegmentDir: true, JournalDir: true},
		Store:  s.ID, Table: table, Journal: s.Journal, Direct: s.Direct, Report: s.opts.Report,
		NextID: o.nextID, Awaited: o.missing,
	}, s.Limits)
}
