package readio

import "sync"

// Gate gives reads priority over writes: while reads are in the disk, only a few writes
// are, so that a read waits for little. Writes always go on: a disk that is read all the
// time must not refuse every save.
//
// How much is written at one time follows the disk. A few writes always go on; beyond
// them, a budget in bytes, which is what the disk needs in flight to be as fast as it can.
type Gate struct {
	mu      sync.Mutex
	changed sync.Cond
	reading int // requests of reads in the disk
	writing int
	bytes   int64 // of the writes in the disk
	// always writes may be in the disk at a time, most never more; in between what
	// budget bytes allow. All of it is divided by fewWrites while there are reads.
	always, most int
	budget       int64
}

const (
	// fewWrites is the part of the writes that go on while there are reads.
	fewWrites = 4
	// defaultWriters is how many writes go on at least in a disk that was not measured.
	defaultWriters = 8
	// mostWriters bounds the writes in the fastest disk.
	mostWriters = 64
)

// NewGate returns a gate for that many writes at one time; 0 has it follow the budget.
func NewGate(writers int) *Gate {
	g := &Gate{always: writers, most: writers}
	g.changed.L = &g.mu
	if writers == 0 {
		g.always, g.most = defaultWriters, mostWriters
	}
	return g
}

// Most is how many writes may be in the disk at one time, whatever the budget.
func (g *Gate) Most() int { return g.most }

// SetBudget sets how many bytes the disk should be given at one time.
func (g *Gate) SetBudget(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.budget = bytes
	g.changed.Broadcast()
}

// BeginWrite waits for the turn of a write of that many bytes.
func (g *Gate) BeginWrite(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.mayWrite(bytes) {
		g.changed.Wait()
	}
	g.writing++
	g.bytes += bytes
	// One that ended may have made room for several.
	g.changed.Signal()
}

func (g *Gate) mayWrite(bytes int64) bool {
	part := 1
	if g.reading > 0 {
		part = fewWrites
	}
	switch {
	case g.writing < max(1, g.always/part):
		return true
	case g.writing >= max(1, g.most/part):
		return false
	}
	return g.bytes+bytes <= g.budget/int64(part)
}

// EndWrite ends what BeginWrite began.
func (g *Gate) EndWrite(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing--
	g.bytes -= bytes
	g.changed.Signal()
}

// reads notes that n requests of reads entered the disk, or left it if n is negative.
func (g *Gate) reads(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reading += n; g.reading == 0 {
		g.changed.Broadcast()
	}
}

// State returns the budget and the number of writes in the disk.
func (g *Gate) State() (budget int64, writing int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.budget, g.writing
}
