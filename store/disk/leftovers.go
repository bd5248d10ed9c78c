package disk

import (
	"path/filepath"
	"strings"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

// setAside renames a file, or a directory in the place of one, out of the way. A failure
// is not one of the opening: whoever needs the name will meet it.
func (s *Store) setAside(path string) {
	if err := fsio.SetAside(s.opts.fs, path); err != nil {
		s.report.Note("%s cannot be renamed (%v)", filepath.Base(path), err)
	}
}

// makeDirs makes the store's directories. A file that has the name of one is set aside.
func (s *Store) makeDirs() error {
	for _, dir := range []string{segmentDir, namespaceDir, journalDir} {
		path := filepath.Join(s.opts.Dir, dir)
		err := fsio.Again(func() error { return s.opts.fs.MkdirAll(path) })
		if err != nil && fsio.IsFile(s.opts.fs, path) {
			s.setAside(path)
			s.report.Note("%s was not a directory: set aside", dir)
			err = s.opts.fs.MkdirAll(path)
		}
		if err != nil {
			return err
		}
	}
	return fsio.Again(func() error { return s.opts.fs.SyncDir(s.opts.Dir) })
}

// cleanUp removes what an earlier process may have left half done.
func (s *Store) cleanUp() {
	fs := s.opts.fs
	remove := func(parts ...string) { _ = fs.Remove(filepath.Join(append([]string{s.opts.Dir}, parts...)...)) }
	remove(segmentDir, calibrationScratch)
	remove(segmentDir, probeFile)
	for _, dir := range []string{"", segmentDir, namespaceDir} {
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
