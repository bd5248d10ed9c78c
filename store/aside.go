package store

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvconn/kvconn/store/internal/disk"
)

// asideSuffix ends the names of files that the store cannot use and does not delete: they
// hold, or may hold, what could be read by someone else. They count under the cap.
const asideSuffix = ".bad"

// setAside renames a file, or a directory in the place of one, out of the way. A failure
// is not one of the opening: whoever needs the name will meet it.
func (s *Store) setAside(path string) {
	to := path + asideSuffix
	for n := 2; s.exists(to); n++ {
		to = fmt.Sprintf("%s.%d%s", path, n, asideSuffix)
	}
	if err := s.opts.fs.Rename(path, to); err != nil {
		s.note("%s cannot be renamed (%v)", filepath.Base(path), err)
	}
}

// exists reports whether there is an entry of that name.
func (s *Store) exists(path string) bool {
	entries, err := s.opts.fs.ReadDir(filepath.Dir(path))
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(path) {
			return true
		}
	}
	return false
}

// measureAside counts what was set aside, now and at earlier openings.
func (s *Store) measureAside() {
	var total int64
	for _, dir := range []string{"", segmentDir, namespaceDir} {
		parent := filepath.Join(s.opts.Dir, dir)
		entries, err := s.opts.fs.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), asideSuffix) {
				if n, err := s.opts.fs.PhysicalBytes(filepath.Join(parent, e.Name())); err == nil {
					total += n
				}
			}
		}
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.aside = total
}

// removeLeftovers removes what a process that was killed was about to write or to remove.
func (s *Store) removeLeftovers() {
	_ = s.opts.journalFS.RemoveAll(filepath.Join(s.opts.Dir, journalDir) + asideSuffix)
	for _, dir := range []string{"", namespaceDir} {
		parent := filepath.Join(s.opts.Dir, dir)
		entries, err := s.opts.fs.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				_ = s.opts.fs.Remove(filepath.Join(parent, e.Name()))
			}
		}
	}
}

// makeDirs makes the store's directories. A file that has the name of one is set aside.
func (s *Store) makeDirs() error {
	for _, dir := range []string{segmentDir, namespaceDir, journalDir} {
		path := filepath.Join(s.opts.Dir, dir)
		err := s.opts.fs.MkdirAll(path)
		if err != nil && !disk.IsNotExist(err) && s.exists(path) {
			s.setAside(path)
			s.note("%s was not a directory: set aside", dir)
			err = s.opts.fs.MkdirAll(path)
		}
		if err != nil {
			return err
		}
	}
	return s.opts.fs.SyncDir(s.opts.Dir)
}
