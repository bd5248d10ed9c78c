package store

import "path/filepath"

// measure finds out how much the journal occupies and how much space others have left.
func (s *Store) measure() {
	s.measureJournal()
	room, err := s.opts.fs.Room(s.space.dir)
	if err != nil {
		return // what was known stays
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	if s.space.room.TotalBytes == 0 { // not known until now
		s.space.minFree = s.opts.minFree(room.TotalBytes)
	}
	s.space.room = room
}

func (s *Store) measureJournal() {
	n, err := s.opts.fs.PhysicalBytes(filepath.Join(s.opts.Dir, journalDir))
	if err != nil {
		return
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.journalB = n
}

// measureSmall counts the manifests and whatever else lies in the directory beside
// segments, journal and snapshot. What the store makes of fixed size is counted elsewhere, as is
// what was set aside.
func (s *Store) measureSmall() {
	fixed := map[string]bool{lockFile: true, formatFile: true, stampFile: true, calibrationFile: true, snapshotFile: true, segmentDir: true, journalDir: true}
	entries, err := s.opts.fs.ReadDir(s.opts.Dir)
	if err != nil {
		return
	}
	var total int64
	for _, e := range entries {
		if fixed[e.Name()] || isAside(e.Name()) {
			continue
		}
		n, err := s.opts.fs.PhysicalBytes(filepath.Join(s.opts.Dir, e.Name()))
		if err != nil {
			return
		}
		total += n
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	manifests := filepath.Join(s.opts.Dir, namespaceDir)
	for _, f := range s.space.aside {
		if filepath.Dir(f.path) == manifests {
			total -= f.bytes
		}
	}
	s.space.smallB = max(total, 0)
}
