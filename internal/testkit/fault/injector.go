package fault

import (
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Action is what happens to an operation after its delays.
type Action struct {
	// Err fails it.
	Err error
	// Flip is the number of bits to flip, at places drawn from Draw.
	Flip int
	Torn bool
	Drop bool
	// Full says that no space is free.
	Full bool
	Draw uint64
}

// Injector acts on operations as a script says. It is safe for concurrent use. It does nothing
// before [Injector.On], where the counts of the clauses start.
type Injector struct {
	mu       sync.Mutex
	on       bool
	began    time.Time
	off      chan struct{} // closed when it is switched off: delays end
	clauses  []state
	injected int64
	seen     int64
	draws    *rand.PCG
	frozen   chan struct{} // closed when what changes the disk may go on; nil if it may
}

type state struct {
	Clause
	matched, acted int64
	random         *rand.Rand
}

// NewInjector makes an injector, which is off.
func NewInjector(s Script) *Injector {
	i := &Injector{}
	i.load(s)
	return i
}

func (i *Injector) load(s Script) {
	i.clauses = nil
	i.draws = rand.NewPCG(uint64(len(s)), 1)
	for _, c := range s {
		i.clauses = append(i.clauses, state{Clause: c, random: rand.New(rand.NewPCG(c.Seed, 2))})
	}
}

// On starts the faults, with all counts at zero.
func (i *Injector) On() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.on {
		return
	}
	i.on, i.began, i.off = true, time.Now(), make(chan struct{})
	for k := range i.clauses {
		c := &i.clauses[k]
		c.matched, c.acted, c.random = 0, 0, rand.New(rand.NewPCG(c.Seed, 2))
	}
}

// Off ends the faults, and the delays of operations under way.
func (i *Injector) Off() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.on {
		i.on = false
		close(i.off)
	}
}

// Replace ends the faults and takes another script, switched off.
func (i *Injector) Replace(s Script) {
	i.Off()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.load(s)
}

// Injected is how many operations the script acted on.
func (i *Injector) Injected() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.injected
}

// Seen is how many operations there were, whether the faults were on or off.
func (i *Injector) Seen() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen
}

// Freeze holds up every operation that changes the disk until thaw is called, for a copy of
// the directory as a killed process leaves it. Operations that are under way when it is called
// may still end.
func (i *Injector) Freeze() (thaw func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	held := make(chan struct{})
	i.frozen = held
	return sync.OnceFunc(func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		close(held)
		i.frozen = nil
	})
}

// awaitThaw waits until operations of this kind may continue.
func (i *Injector) awaitThaw(k Kind) {
	if k == Read || k == List || k == Stat || k == Free {
		return
	}
	i.mu.Lock()
	held := i.frozen
	i.mu.Unlock()
	if held != nil {
		<-held
	}
}

// Act waits out the delays that the script has for an operation, and returns what to do to it.
func (i *Injector) Act(op Op) Action {
	i.awaitThaw(op.Kind)
	a, delay, off := i.decide(op)
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-off:
		}
	}
	return a
}

func (i *Injector) decide(op Op) (a Action, delay time.Duration, off <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen++
	if !i.on {
		return a, 0, nil
	}
	since, acted := time.Since(i.began), false
	for k := range i.clauses {
		c := &i.clauses[k]
		if !c.fires(op, since) {
			continue
		}
		acted = true
		e := &c.Effect
		if e.Errno != 0 && a.Err == nil {
			a.Err = e.Errno
		}
		delay += e.Delay
		a.Flip += e.Flip
		a.Torn = a.Torn || e.Torn
		a.Drop = a.Drop || e.Drop
		a.Full = a.Full || e.Full
	}
	if acted {
		i.injected++
		a.Draw = i.draws.Uint64()
	}
	return a, delay, i.off
}

// fires reports whether the clause acts on the operation, and counts it.
func (c *state) fires(op Op, since time.Duration) bool {
	switch {
	case c.Kind != Any && c.Kind != op.Kind,
		!Match(c.Pattern, op.Path),
		c.To > 0 && (op.Offset >= c.To || op.Offset+op.Bytes <= c.From),
		since < c.Since,
		c.Until > 0 && since >= c.Until:
		return false
	}
	c.matched++
	switch {
	case c.matched <= c.After,
		c.For > 0 && c.acted >= c.For,
		c.Every > 0 && (c.matched-c.After)%c.Every != 0,
		c.Prob > 0 && c.random.Float64() >= c.Prob:
		return false
	}
	c.acted++
	return true
}

// Match reports whether a path matches a pattern: ** is all paths, DIR/** all paths below DIR.
func Match(pattern, name string) bool {
	if pattern == "**" {
		return true
	}
	if dir, ok := strings.CutSuffix(pattern, "/**"); ok {
		return name == dir || strings.HasPrefix(name, dir+"/")
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// ErrTorn is the error of a torn write.
const ErrTorn = syscall.EIO

// FlipBits flips a's bits in b.
func (a *Action) FlipBits(b []byte) {
	if len(b) == 0 {
		return
	}
	g := rand.New(rand.NewPCG(a.Draw, 3))
	for range a.Flip {
		bit := g.IntN(8 * len(b))
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// TornBytes is how much of a torn write of n bytes reaches the disk, in whole sectors.
func (a *Action) TornBytes(n int) int {
	const sector = 4096
	if n <= sector {
		return 0
	}
	return int(a.Draw%uint64(n/sector)) * sector
}
