package campaign

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Fault is what happens to one file while the store is down.
type Fault int

// The faults. A replaced file is an older version of itself; an unreadable one, or one of its
// sectors, gives EIO when it is read.
const (
	Flipped Fault = iota
	Cut
	Deleted
	Zeroed
	Replaced
	Unreadable
	faults
)

// String is the fault's name in the table.
func (f Fault) String() string {
	return [...]string{"bit flipped", "cut short", "deleted", "zeroed", "older version", "unreadable"}[f]
}

// Cell is a kind of damage: a row of the table.
type Cell struct {
	State State
	// Kind is a file's path without its numbers.
	Kind  string
	Fault Fault
}

// numbers are the parts of a path that differ between files of one kind.
var numbers = regexp.MustCompile(`[0-9a-f]{16,}|[0-9]{3,}`)

// kindOf is the kind of a file. The newest of the journal's logs is a kind of its own.
func kindOf(path string, all []string) string {
	kind := filepath.ToSlash(numbers.ReplaceAllString(path, "*"))
	if strings.HasSuffix(path, ".log") {
		logs := slices.Clone(all)
		logs = slices.DeleteFunc(logs, func(p string) bool { return !strings.HasSuffix(p, ".log") })
		if path == slices.Max(logs) {
			return kind + " (newest)"
		}
		return kind + " (older)"
	}
	return kind
}

// Parts of a segment that damage of a few bytes is aimed at, each a kind of its own.
const (
	segmentHeader = " segment header"
	recordHeader  = " record header"
	recordPayload = " payload"
)

// isSegment reports whether records are in a file.
func (s *snapshot) isSegment(path string) bool {
	for _, r := range s.regions {
		if r.path == path {
			return true
		}
	}
	return false
}

// Cells lists every kind of damage to the store. It finds the files by listing the directory, so
// it also damages files that nobody thought of.
func (o *Original) Cells() []Cell {
	var out []Cell
	for state := range states {
		s := &o.states[state]
		for _, path := range s.files {
			kind := kindOf(path, s.files)
			parts := []string{""}
			if s.isSegment(path) {
				parts = []string{"", segmentHeader, recordHeader, recordPayload}
			}
			for _, part := range parts {
				for f := range faults {
					if part != "" && f != Flipped && f != Zeroed && f != Unreadable || part == "" && len(parts) > 1 && f == Flipped {
						continue
					}
					if f == Replaced && s.olderVersions(path) == nil {
						continue
					}
					if c := (Cell{state, kind + part, f}); !slices.Contains(out, c) {
						out = append(out, c)
					}
				}
			}
		}
	}
	return out
}

// CellsLike are the cells whose trials have the text in their name.
func CellsLike(cells []Cell, text string) []Cell {
	var out []Cell
	for _, c := range cells {
		if strings.Contains(Trial{Cell: c}.String(), text) {
			out = append(out, c)
		}
	}
	return out
}

// olderVersions are the earlier contents of a file that differ from the present one.
func (s *snapshot) olderVersions(path string) [][]byte {
	now, err := os.ReadFile(filepath.Join(s.dir, path))
	if err != nil {
		return nil
	}
	var out [][]byte
	for _, dir := range s.older {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err == nil && !bytes.Equal(b, now) {
			out = append(out, b)
		}
	}
	return out
}

// damage is what was done to a copy of a snapshot.
type damage struct {
	path string
	// what describes the damage.
	what string
	// script goes below the store, for files that cannot be read.
	script string
	// from and to are the part that cannot be read.
	from, to int64
}

// inflict does a cell's damage to the copy in dir, at a place drawn from g.
func (s *snapshot) inflict(dir string, c Cell, g *rand.Rand) (damage, error) {
	var candidates []string
	kind, part := c.Kind, ""
	for _, p := range []string{segmentHeader, recordHeader, recordPayload} {
		if k, ok := strings.CutSuffix(kind, p); ok {
			kind, part = k, p
		}
	}
	for _, path := range s.files {
		if kindOf(path, s.files) == kind && (c.Fault != Replaced || s.olderVersions(path) != nil) && (part == "" || s.isSegment(path)) {
			candidates = append(candidates, path)
		}
	}
	if len(candidates) == 0 {
		return damage{}, fmt.Errorf("no file for %+v", c)
	}
	d := damage{path: candidates[g.IntN(len(candidates))]}
	full := filepath.Join(dir, d.path)
	b, err := os.ReadFile(full)
	if err != nil {
		return d, err
	}
	from, to := s.aim(d.path, part, int64(len(b)), g)
	switch c.Fault {
	case Flipped:
		if len(b) == 0 {
			d.what = "empty: left alone"
			return d, nil
		}
		at, bit := from+g.Int64N(to-from), g.IntN(8)
		b[at] ^= 1 << bit
		d.what = fmt.Sprintf("bit %d of byte %d flipped", bit, at)
	case Cut:
		n := g.IntN(len(b) + 1)
		b, d.what = b[:n], fmt.Sprintf("cut from %d to %d bytes", len(b), n)
	case Deleted:
		d.what = "deleted"
		return d, os.Remove(full)
	case Zeroed:
		if part == "" && g.IntN(2) == 0 && len(b) > page {
			from = g.Int64N(int64(len(b))-page+1) / page * page
			to = from + page
		}
		clear(b[from:to])
		d.what = fmt.Sprintf("bytes %d to %d zeroed", from, to)
	case Replaced:
		older := s.olderVersions(d.path)
		k := g.IntN(len(older))
		b, d.what = older[k], fmt.Sprintf("replaced by older version %d of %d", k+1, len(older))
	case Unreadable:
		d.unreadable(from, to, part, g)
		return d, nil
	}
	return d, os.WriteFile(full, b, 0o600)
}

// aim returns the part of a file that is meant: all of it, or a part of a segment.
func (s *snapshot) aim(path, part string, size int64, g *rand.Rand) (from, to int64) {
	if part == "" {
		return 0, size
	}
	if part == segmentHeader {
		return 0, page
	}
	var in []region
	for _, r := range s.regions {
		if r.path == path {
			in = append(in, r)
		}
	}
	slices.SortFunc(in, func(a, b region) int { return int(a.from - b.from) })
	r := in[g.IntN(len(in))]
	if part == recordHeader {
		return r.from, r.from + page
	}
	return r.from + page, r.to
}

// unreadable makes a whole file unreadable, or one sector of it.
func (d *damage) unreadable(from, to int64, part string, g *rand.Rand) {
	path := filepath.ToSlash(d.path)
	if part == "" && g.IntN(2) == 0 {
		d.what, d.from, d.to = "every read fails", 0, 1<<62
		d.script = fmt.Sprintf("(on read %s EIO)", path)
		return
	}
	at := from
	if to-from > page {
		at += g.Int64N((to-from)/page) * page
	}
	d.from, d.to = at, at+page
	d.what = fmt.Sprintf("reads of bytes %d to %d fail", at, at+page)
	d.script = fmt.Sprintf("(on read %s (range %d %d) EIO)", path, at, at+page)
}

// intact are the records whose own bytes are as they were.
func (s *snapshot) intact(dir string, d damage) []Record {
	before, _ := os.ReadFile(filepath.Join(s.dir, d.path))
	after, _ := os.ReadFile(filepath.Join(dir, d.path))
	var out []Record
	for _, r := range s.held {
		at := s.regions[r]
		if at.path == d.path && (at.to > int64(len(after)) || !bytes.Equal(before[at.from:at.to], after[at.from:at.to]) ||
			at.from < d.to && at.to > d.from) {
			continue
		}
		out = append(out, r)
	}
	return out
}
