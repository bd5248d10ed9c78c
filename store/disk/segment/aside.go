package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/record"
)

// asideFile is a file (or a directory) that holds no record of the index: one that was set
// aside at the start since it could not be read, or a segment that was given up and whose
// removal failed. It counts under the cap until it is removed.
type asideFile struct {
	path  string
	bytes int64
	slots int64 // of a segment that may be opened later, at most
	due   bool  // to be removed now; others only when room is needed
	kept  bool  // not to be removed: a segment that cannot be opened may be at the next start
	stuck bool  // the last removal failed
}

// findAside counts what was set aside, at this start or before, and the segments that
// cannot be opened. What is counted already is left alone, as are segments that are being made.
func (p *Space) findAside() (err error) {
	for _, dir := range p.asideDirs() {
		entries, failed := p.o.FS.ReadDir(dir)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("look for what was set aside: %w", failed))
			continue
		}
		for _, e := range entries {
			id, segment := IDOf(e.Name())
			segment = segment && dir == p.o.Dir
			path := filepath.Join(dir, e.Name())
			if !segment && !fsio.IsAside(e.Name()) || segment && p.counts(id) || p.isAside(path) {
				continue
			}
			n, failed := p.o.FS.PhysicalBytes(path)
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("measure what was set aside: %w", failed))
				continue
			}
			p.keepAside(asideFile{path: path, bytes: n, kept: segment})
		}
	}
	return err
}

// asideDirs are the directories where files may be set aside.
func (p *Space) asideDirs() []string {
	dirs := []string{p.o.Root, p.o.Dir}
	for _, name := range p.o.Others {
		dirs = append(dirs, filepath.Join(p.o.Root, name))
	}
	return dirs
}

// counts reports whether a segment is in use or was made since the store opened: that is counted
// by who made it.
func (p *Space) counts(id uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments[id] != nil || id >= p.firstMade
}

// isAside reports whether a file is counted among those set aside.
func (p *Space) isAside(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.countsAside(path)
}

// countsAside is isAside; p.mu is held.
func (p *Space) countsAside(path string) bool {
	return slices.ContainsFunc(p.aside, func(f asideFile) bool { return f.path == path })
}

// keepAside counts a file that was found, unless it is counted or is a segment that was opened
// meanwhile.
func (p *Space) keepAside(f asideFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.countsAside(f.path) {
		return
	}
	if id, ok := IDOf(filepath.Base(f.path)); ok && f.kept {
		if p.segments[id] != nil {
			return
		}
		const leastSlotBytes = record.HeaderBytes + fsio.Align
		f.bytes += segmentSlackBytes
		if f.slots = f.bytes / leastSlotBytes; p.o.Awaited[id] > 0 {
			f.slots = int64(p.o.Awaited[id])
		}
	}
	p.awaitedSlots += f.slots
	p.aside = append(p.aside, f)
	p.bytes += f.bytes
}

// dropAside counts a file no more that was set aside. p.mu is held.
func (p *Space) dropAside(path string) {
	p.aside = slices.DeleteFunc(p.aside, func(f asideFile) bool {
		if f.path == path {
			p.bytes -= f.bytes
			p.awaitedSlots -= f.slots
		}
		return f.path == path
	})
}

// dueForRoom reports whether something that was set aside can go before any record. It is
// due then. p.mu is held.
func (p *Space) dueForRoom() bool {
	for _, due := range [...]bool{true, false} {
		for i := range p.aside {
			if f := &p.aside[i]; f.due == due && !f.stuck && !f.kept {
				f.due = true
				return true
			}
		}
	}
	return false
}

// removeAside removes the files that are due, and others as long as room is needed. What
// cannot be removed stays counted and is tried again.
func (p *Space) removeAside() (err error) {
	p.mu.Lock()
	files := slices.Clone(p.aside)
	p.mu.Unlock()
	for _, f := range files {
		p.mu.Lock()
		due := !f.kept && (f.due || p.excess() > 0)
		p.mu.Unlock()
		if !due {
			continue
		}
		if failed := fsio.RemoveTree(p.o.FS, f.path); failed != nil {
			p.setStuck(f.path)
			err = errors.Join(err, fmt.Errorf("remove %s: %w", f.path, failed))
			continue
		}
		// If the name comes back after a loss of power, the file is found at the start.
		_ = p.o.FS.SyncDir(filepath.Dir(f.path))
		p.mu.Lock()
		p.limits.room.FreeBytes += f.bytes
		p.dropAside(f.path)
		p.mu.Unlock()
	}
	return err
}

func (p *Space) setStuck(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.aside {
		if f := &p.aside[i]; f.path == path {
			f.due, f.stuck = true, true
		}
	}
}

// asideBytes is what the files occupy that were set aside. p.mu is held.
func (p *Space) asideBytes() (n int64) {
	for _, f := range p.aside {
		n += f.bytes
	}
	return n
}

// ForgetAside counts a file no more that was set aside and is gone.
func (p *Space) ForgetAside(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAside(path)
}
