package disk

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"golang.org/x/sys/unix"
)

// What cannot be measured is not taken for nothing: what was known stays, it is measured again
// soon, and until then the store does not grow.

// unmeasuredTries is for how many measurements, one a second, the store does not grow while
// some file cannot be measured. One that never can be must not end all saves.
const unmeasuredTries = 30

// measureFiles counts what lies in the directory beside segments and journal when the store
// opens.
func (s *Store) measureFiles() {
	p := s.space
	p.mu.Lock()
	p.firstMade = p.nextID
	p.mu.Unlock()
	if err := fsio.Again(s.countFiles); err != nil {
		s.report.Note("not all files can be measured: no segment is made until they can, or for %d s (%v)", unmeasuredTries, err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.uncounted, p.unmeasured = true, unmeasuredTries
	}
}

func (s *Store) countFiles() error { return errors.Join(s.findAside(), s.measureSmall()) }

// recount counts the small files again, and what could not be counted at the start: however long
// that takes, the cap is to hold for it.
func (s *Store) recount() error {
	p := s.space
	p.mu.Lock()
	uncounted := p.uncounted
	p.mu.Unlock()
	if !uncounted {
		return s.measureSmall()
	}
	if err := s.countFiles(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncounted, p.unmeasured = false, 0
	return nil
}

// measure finds out how much the journal occupies and how much space others have left, and
// what could not be measured before.
func (s *Store) measure() {
	_ = s.measureJournal() // what was known stays
	room, err := s.opts.fs.Room(s.space.dir)
	p := s.space
	p.mu.Lock()
	if err == nil {
		p.setRoom(room)
	}
	waits := p.unmeasured > 0
	p.mu.Unlock()
	if waits && s.recount() != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unmeasured = max(0, p.unmeasured-1)
	}
}

func (s *Store) measureJournal() error {
	n, err := s.opts.fs.PhysicalBytes(filepath.Join(s.opts.Dir, journalDir))
	if err != nil {
		return fmt.Errorf("measure journal: %w", err)
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.journalB = n
	return nil
}

// measureSmall counts the manifests and whatever else lies in the directory beside
// segments, journal and snapshot. What the store makes of fixed size is counted elsewhere, as is
// what was set aside. A directory of others that may not be looked into, such as lost+found, can
// never be measured: it counts as an empty one. Where something else cannot be measured at
// least the rest counts.
func (s *Store) measureSmall() error {
	fixed := map[string]bool{lockFile: true, formatFile: true, stampFile: true, calibrationFile: true, snapshotFile: true, segmentDir: true, journalDir: true}
	entries, err := s.opts.fs.ReadDir(s.opts.Dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", s.opts.Dir, err)
	}
	var total int64
	var failed error
	for _, e := range entries {
		if fixed[e.Name()] || fsio.IsAside(e.Name()) {
			continue
		}
		n, err := s.opts.fs.PhysicalBytes(filepath.Join(s.opts.Dir, e.Name()))
		if err != nil && (e.Name() == namespaceDir || !errors.Is(err, unix.EACCES)) {
			failed = errors.Join(failed, fmt.Errorf("measure: %w", err))
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
	if failed != nil {
		total = max(total, s.space.smallB)
	}
	s.space.smallB = max(total, 0)
	return failed
}
