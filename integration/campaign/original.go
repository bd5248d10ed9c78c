package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// State is how the store was left before it was damaged.
type State int

// The states: after a clean stop, and as kill -9 leaves it.
const (
	Stopped State = iota
	Killed
	states
)

// String is the state's name in the table.
func (s State) String() string { return [...]string{"clean stop", "kill -9"}[s] }

// Original is a store that trials copy: in both states, with older generations of its files
// and the place of every record.
type Original struct {
	dir      string
	cap      int64
	states   [states]snapshot
	contents contents
}

// snapshot is a directory in one of the states.
type snapshot struct {
	dir string
	// older are directories with earlier versions of the same files, newest first.
	older []string
	// files are the paths of all files, relative to dir.
	files []string
	// saved are all records that were ever saved, held those that it holds undamaged.
	saved, held []Record
	// regions are where on the disk the records are that it holds.
	regions map[Record]region
}

// region is a record's own bytes in a segment: header and payload.
type region struct {
	path     string
	from, to int64
}

// chainLength is the length of the chains that stores are filled with.
const chainLength = 12

// NewOriginal makes the store below dir, over several runs, with eviction in each but the
// first. It takes some seconds.
func NewOriginal(dir string) (*Original, error) {
	o := &Original{dir: dir, cap: DefaultCap}
	b := &builder{o: o, dir: filepath.Join(dir, "live"), injector: fault.NewInjector(nil)}
	steps := []func() error{
		func() error { return b.run(20) },
		func() error { return b.keep("first") },
		func() error { return b.run(120) },
		func() error { return b.keep("second") },
		func() error { return b.run(60) },
		func() error { return b.keep("stopped") },
		func() error { return b.runKilled(60, "half-way", "killed") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("make the original: %w", err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	o.states[Stopped] = snapshot{dir: at("stopped"), older: []string{at("second"), at("first")}}
	o.states[Killed] = snapshot{dir: at("killed"), older: []string{at("half-way"), at("stopped"), at("second")}}
	for s := range o.states {
		o.states[s].saved = b.saved
		if err := o.survey(&o.states[s]); err != nil {
			return nil, fmt.Errorf("survey the original, %v: %w", State(s), err)
		}
	}
	return o, os.RemoveAll(b.dir)
}

// Records is how many records the store holds in a state.
func (o *Original) Records(s State) int { return len(o.states[s].held) }

// builder fills a store over several runs.
type builder struct {
	o        *Original
	dir      string
	injector *fault.Injector
	chain    int
	saved    []Record
}

// run opens the store, saves chains of both sizes in turn and closes it.
func (b *builder) run(chains int) error {
	s, err := b.open()
	if err != nil {
		return err
	}
	return errors.Join(b.fill(s, chains), s.close())
}

// runKilled is run, with two copies as kill -9 would leave them: one halfway and one at the end.
func (b *builder) runKilled(chains int, half, end string) (err error) {
	s, err := b.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, name := range []string{half, end} {
		if err := b.fill(s, chains/2); err != nil {
			return err
		}
		if err := s.sync(); err != nil {
			return err
		}
		thaw := b.injector.Freeze()
		time.Sleep(settle)
		err := b.keep(name)
		thaw()
		if err != nil {
			return err
		}
	}
	return nil
}

// settle is the time for operations that are under way to end.
const settle = 20 * time.Millisecond

func (b *builder) open() (*subject, error) {
	s, err := open(b.dir, limits{cap: b.o.cap}, b.injector, &b.o.contents)
	if err != nil {
		return nil, err
	}
	if err := s.openNamespaces(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (b *builder) fill(s *subject, chains int) error {
	for range chains {
		b.chain++
		size := Narrow
		if b.chain%3 == 0 {
			size = Wide
		}
		records := Chain(size, b.chain, chainLength)
		if err := s.saveAll(records); err != nil {
			return err
		}
		b.saved = append(b.saved, records...)
	}
	return nil
}

func (b *builder) keep(name string) error {
	return copyTree(filepath.Join(b.o.dir, name), b.dir)
}

// survey lists a snapshot's files and finds out what it holds, and where.
func (o *Original) survey(s *snapshot) error {
	if err := s.list(); err != nil {
		return err
	}
	work := s.dir + ".work"
	defer func() { _ = os.RemoveAll(work) }()
	if err := copyTree(work, s.dir); err != nil {
		return err
	}
	run, err := open(work, limits{cap: o.cap}, fault.NewInjector(nil), &o.contents)
	if err != nil {
		return err
	}
	if err := run.openNamespaces(); err != nil {
		return errors.Join(err, run.close())
	}
	errs, err := run.read(s.saved)
	if err = errors.Join(err, run.close()); err != nil {
		return err
	}
	for i, err := range errs {
		if err == nil {
			s.held = append(s.held, s.saved[i])
		}
	}
	if len(s.held) == 0 {
		return errors.New("it holds nothing")
	}
	return o.locate(s)
}

// list lists the snapshot's files.
func (s *snapshot) list() error {
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(s.dir, path)
			s.files = append(s.files, rel)
		}
		return err
	})
	slices.Sort(s.files)
	return err
}

// page is the alignment of everything in a segment.
const page = 4096

// locate finds the records in the segments by the beginnings of their payloads.
func (o *Original) locate(s *snapshot) error {
	const prefix = 16
	wanted := make(map[[prefix]byte]Record, len(s.held))
	for _, r := range s.held {
		wanted[[prefix]byte(o.contents.get(r)[:prefix])] = r
	}
	s.regions = make(map[Record]region, len(s.held))
	for _, path := range s.files {
		b, err := os.ReadFile(filepath.Join(s.dir, path))
		if err != nil {
			return err
		}
		for at := page; at+prefix <= len(b); at += page {
			r, ok := wanted[[prefix]byte(b[at:at+prefix])]
			payload := o.contents.get(r)
			if !ok || at+len(payload) > len(b) || !bytes.Equal(payload, b[at:at+len(payload)]) {
				continue
			}
			end := at + (len(payload)+page-1)/page*page
			s.regions[r] = region{path, int64(at - page), int64(end)}
		}
	}
	if len(s.regions) != len(s.held) {
		return fmt.Errorf("%d of %d records were found on the disk", len(s.regions), len(s.held))
	}
	return nil
}

// copyTree copies a directory's files and directories.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while the store runs
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, b, 0o600)
	})
}
