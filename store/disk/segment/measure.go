package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"golang.org/x/sys/unix"
)

// What cannot be measured is not taken for nothing: what was known stays, it is measured again
// soon, and until then the store does not grow.

// unmeasuredTries is for how many measurements, one a second, the store does not grow while
// some file cannot be measured. One that never can be must not end all saves.
const unmeasuredTries = 30

// MeasureFiles counts what lies in the directory beside segments and journal when the store
// opens.
func (p *Space) MeasureFiles() {
	p.mu.Lock()
	p.firstMade = p.nextID
	p.mu.Unlock()
	if err := fsio.Again(p.countFiles); err != nil {
		p.o.Report.Note("not all files can be measured: no segment is made until they can, or for %d s (%v)", unmeasuredTries, err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.uncounted, p.unmeasured = true, unmeasuredTries
	}
}

func (p *Space) countFiles() error { return errors.Join(p.findAside(), p.measureSmall()) }

// recount counts the small files again, and what could not be counted at the start: however long
// that takes, the cap is to hold for it.
func (p *Space) recount() error {
	p.mu.Lock()
	uncounted := p.uncounted
	p.mu.Unlock()
	if !uncounted {
		return p.measureSmall()
	}
	if err := p.countFiles(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncounted, p.unmeasured = false, 0
	return nil
}

// measure finds out how much the journal occupies and how much space others have left, and
// what could not be measured before.
func (p *Space) measure() {
	_ = p.MeasureJournal() // what was known stays
	room, err := p.o.FS.Room(p.o.Dir)
	p.mu.Lock()
	if err == nil {
		p.limits.setRoom(room)
	}
	waits := p.unmeasured > 0
	p.mu.Unlock()
	if waits && p.recount() != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unmeasured = max(0, p.unmeasured-1)
	}
}

// MeasureJournal finds out how much the journal occupies.
func (p *Space) MeasureJournal() error {
	n, err := p.o.FS.PhysicalBytes(p.o.JournalDir)
	if err != nil {
		return fmt.Errorf("measure journal: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journalB = n
	return nil
}

// measureSmall counts the manifests and whatever else lies in the directory beside
// segments, journal and snapshot. What the store makes of fixed size is counted elsewhere, as is
// what was set aside. A directory of others that may not be looked into, such as lost+found, can
// never be measured: it counts as an empty one. Where something else cannot be measured at
// least the rest counts.
func (p *Space) measureSmall() error {
	entries, err := p.o.FS.ReadDir(p.o.Root)
	if err != nil {
		return fmt.Errorf("list %s: %w", p.o.Root, err)
	}
	var total int64
	var failed error
	for _, e := range entries {
		if p.o.Fixed[e.Name()] || fsio.IsAside(e.Name()) {
			continue
		}
		n, err := p.o.FS.PhysicalBytes(filepath.Join(p.o.Root, e.Name()))
		if err != nil && (slices.Contains(p.o.Others, e.Name()) || !errors.Is(err, unix.EACCES)) {
			failed = errors.Join(failed, fmt.Errorf("measure: %w", err))
		}
		total += n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.aside {
		if dir := filepath.Dir(f.path); dir != p.o.Root && dir != p.o.Dir {
			total -= f.bytes
		}
	}
	if failed != nil {
		total = max(total, p.smallB)
	}
	p.smallB = max(total, 0)
	return failed
}
