package pins

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// FileName is the file in the store's directory that keeps pins.
const FileName = "PINS"

// Options are what pins work on.
type Options struct {
	Table *index.Table
	FS    fsio.FS
	Dir   string
	// Number returns the number of a namespace that is known.
	Number func(connector.NamespaceDigest) (uint16, bool)
	// Seq is the last sequence number given.
	Seq func() uint64
	// MaxBytes is how many bytes of payloads may be pinned.
	MaxBytes int64
	// Claim takes room under the cap for a file of that size; Measured has files counted as they are.
	Claim    func(bytes int) error
	Measured func()
	Clock    func() time.Time
	Logger   *slog.Logger
}

// Pins are those of one store. Its methods may be called from any goroutine. None holds a lock while it reads or writes.
type Pins struct {
	o Options
	// turn is held, by one at a time, for a change of the list: the file is written first.
	turn chan struct{}

	mu      sync.Mutex
	list    []Pin
	late    *late // of list; nil until a record is found late
	lost    bool
	changed chan struct{}
}

// New returns no pins. Load is called once the index is filled.
func New(o Options) *Pins {
	return &Pins{o: o, turn: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

func (p *Pins) path() string { return filepath.Join(p.o.Dir, FileName) }

// Load reads the pins that were kept, and applies those whose time is not over. A file that is damaged costs the pins alone:
// it is set aside.
func (p *Pins) Load(ctx context.Context) {
	var list []Pin
	err := fsio.Again(func() (err error) { list, err = read(p.o.FS, p.path()); return err })
	if err != nil {
		p.o.Logger.Warn("store: the file of pins cannot be read: nothing is pinned any more", "err", err,
			"remedy", "pin again what should stay; look for I/O errors in the kernel's log")
		_ = fsio.SetAside(p.o.FS, p.path()) // else the next change replaces it
		p.mu.Lock()
		p.lost = true
		p.mu.Unlock()
		return
	}
	now := p.o.Clock()
	p.mu.Lock()
	p.list, _ = without(list, func(pin *Pin) bool { return !pin.Until.After(now) })
	p.late = nil
	list = slices.Clone(p.list)
	p.mu.Unlock()
	p.apply(ctx, list)
}

// apply has the records of pins kept, up to MaxBytes: the cap may be lower than when they were made.
func (p *Pins) apply(ctx context.Context, list []Pin) {
	for i := range list {
		found, err := p.find(ctx, &list[i])
		if err != nil {
			return // the store closes
		}
		if left := len(found) - p.keep(found, true); left > 0 && p.missing(found) > 0 {
			p.o.Logger.Warn("store: not all that is pinned may be: the cap is lower than it was", "pin", list[i].ID, "records", left,
				"max_bytes", p.o.MaxBytes, "remedy", "raise max_bytes or pin_max_percent, or unpin something")
		}
	}
}

// missing is how many records are there and not kept.
func (p *Pins) missing(found []chains.Record) (n int) {
	for i := range found {
		if !p.o.Table.Keeps(found[i].Ref) {
			n++
		}
	}
	return n
}

// keep has records kept, or no more, and returns how many that has changed.
func (p *Pins) keep(found []chains.Record, keep bool) int {
	refs, seqs := make([]index.Ref, len(found)), make([]uint64, len(found))
	for i := range found {
		refs[i], seqs[i] = found[i].Ref, found[i].Seq
	}
	return p.o.Table.Keep(refs, seqs, keep, p.o.MaxBytes)
}

// find returns the records of a pin that are there.
func (p *Pins) find(ctx context.Context, pin *Pin) ([]chains.Record, error) {
	number, known := p.o.Number(pin.Namespace)
	if !known {
		return nil, nil
	}
	c := &chains.Prompt{Namespace: number, Shards: pin.Shards, Keys: pin.Keys, UpTo: pin.UpTo}
	if len(pin.Keys) == 0 {
		return chains.All(ctx, p.o.Table, c)
	}
	c.UpTo = ^uint64(0)
	return chains.Blocks(ctx, p.o.Table, c)
}

// Add pins what there is of the pins' namespaces or prompts, for that time. It sets what is not said: names, sizes and times.
// With dry set it only counts. It fails with [ErrFull] or [ErrNothing], with [store.ErrIO] if the file can't be
// written, or with the cause of ctx; then nothing is pinned.
func (p *Pins) Add(ctx context.Context, list []Pin, during time.Duration, dry bool) ([]Pin, error) {
	if during <= 0 || during > MaxTime {
		return nil, fmt.Errorf("pin for %s: up to %s: %w", during, MaxTime, store.ErrInvalid)
	}
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	defer p.release()
	now := p.o.Clock()
	var all []chains.Record
	added := make([]Pin, 0, len(list))
	for _, pin := range list {
		pin.UpTo, pin.Made, pin.Until = p.o.Seq(), now, now.Add(during)
		found, err := p.find(ctx, &pin)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue
		}
		for i := range found {
			pin.Records, pin.Bytes = pin.Records+1, pin.Bytes+int64(found[i].Bytes)
		}
		var id [4]byte
		_, _ = rand.Read(id[:]) // never fails
		pin.ID = hex.EncodeToString(id[:])
		added, all = append(added, pin), append(all, found...)
	}
	if len(added) == 0 {
		return nil, ErrNothing
	}
	kept, more := p.o.Table.Kept().Bytes, int64(0)
	fresh := slices.DeleteFunc(all, func(r chains.Record) bool { return p.o.Table.Keeps(r.Ref) })
	for i := range fresh {
		more += int64(fresh[i].Bytes)
	}
	if kept+more > p.o.MaxBytes {
		return nil, fmt.Errorf("%d bytes beside %d that are pinned, at most %d: %w", more, kept, p.o.MaxBytes, ErrFull)
	}
	if dry {
		return added, nil
	}
	p.keep(fresh, true) // before the file is written: evictions go on meanwhile
	list = append(p.List(), added...)
	if err := p.save(list); err != nil {
		p.keep(fresh, false)
		return nil, err
	}
	p.set(list)
	return added, nil
}

// Remove ends pins before their time. It fails with [ErrUnknown] if there are none with these names, or like [Pins.Add].
func (p *Pins) Remove(ctx context.Context, ids ...string) error {
	return p.drop(ctx, false, func(pin *Pin) bool { return slices.Contains(ids, pin.ID) })
}

// drop ends the pins that it chooses; if their time is over, also where the file can't be written: they end at the next start anyway.
func (p *Pins) drop(ctx context.Context, over bool, chosen func(*Pin) bool) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.release()
	left, dropped := without(p.List(), chosen)
	if len(dropped) == 0 {
		return ErrUnknown
	}
	err := p.save(left)
	if err != nil && !over {
		return err
	}
	p.set(left)
	ctx = context.WithoutCancel(ctx) // else records would stay pinned that no pin has
	for i := range dropped {
		found, err := p.find(ctx, &dropped[i])
		if err != nil {
			return err
		}
		p.keep(slices.DeleteFunc(found, covers(left, dropped[i].Namespace)), false)
	}
	return err
}

// covers returns what says whether pins of a list keep a record of a namespace.
func covers(list []Pin, ns connector.NamespaceDigest) func(chains.Record) bool {
	upTo, blocks := uint64(0), make(map[connector.Key][]*Pin)
	for i := range list {
		pin := &list[i]
		if pin.Namespace != ns {
			continue
		}
		if len(pin.Keys) == 0 {
			upTo = max(upTo, pin.UpTo)
		}
		for _, k := range pin.Keys {
			blocks[k] = append(blocks[k], pin)
		}
	}
	return func(r chains.Record) bool {
		return r.Seq <= upTo || slices.ContainsFunc(blocks[r.ID.Key], func(pin *Pin) bool { return slices.Contains(pin.Shards, r.ID.Shard) })
	}
}

// save writes the file.
func (p *Pins) save(list []Pin) error {
	if err := check(list); err != nil {
		return err
	}
	b, err := encode(list)
	if err != nil {
		return fmt.Errorf("encode pins: %w", err)
	}
	if err := p.o.Claim(len(b)); err != nil {
		return fmt.Errorf("write pins: %w", err)
	}
	err = p.o.FS.WriteFileAtomic(p.path(), b)
	p.o.Measured()
	if err != nil {
		return fmt.Errorf("write pins: %w: %w", store.ErrIO, err)
	}
	return nil
}

// set makes a list the one in force.
func (p *Pins) set(list []Pin) {
	p.mu.Lock()
	p.list, p.late = list, nil
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *Pins) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another change of pins: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
}

func (p *Pins) release() { <-p.turn }

// List returns the pins in force.
func (p *Pins) List() []Pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// MaxBytes is how many bytes of payloads may be pinned.
func (p *Pins) MaxBytes() int64 { return p.o.MaxBytes }

// Lost reports whether the file of pins could not be read at the start.
func (p *Pins) Lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

const (
	// look is the longest time between two looks at the clock, which may have been set.
	look = time.Minute
	// settle is the time between two looks whether all records are found.
	settle = time.Second
)

// Run ends pins whose time is over, until ctx ends. complete says whether the store knows all of its records: pins are applied once more when it
// does, since a record may have been found before its namespace was known.
func (p *Pins) Run(ctx context.Context, complete func() bool) {
	again := !complete()
	for ctx.Err() == nil {
		pause := p.next()
		if again {
			pause = min(pause, settle)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-p.changed:
		}
		t.Stop()
		if again && complete() && p.take(ctx) == nil {
			again = false
			p.apply(ctx, p.List())
			p.release()
		}
		now := p.o.Clock()
		if !slices.ContainsFunc(p.List(), func(pin Pin) bool { return !pin.Until.After(now) }) {
			continue
		}
		if err := p.drop(ctx, true, func(pin *Pin) bool { return !pin.Until.After(now) }); err != nil && ctx.Err() == nil {
			p.o.Logger.Warn("store: the file of pins still has some whose time is over", "err", err,
				"remedy", "free space in the file system of the store; see the kernel's log if the disk fails")
		}
	}
}

// next is the time until a pin ends.
func (p *Pins) next() time.Duration {
	now, pause := p.o.Clock(), look
	for _, pin := range p.List() {
		pause = min(pause, max(0, pin.Until.Sub(now)))
	}
	return pause
}
