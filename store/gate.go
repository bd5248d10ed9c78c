package store

import "sync"

// gate gives reads priority over writes: while reads are in the disk, only a few writes
// are, so that a read waits behind little. Writes always go on: a disk that is read all the
// time must not refuse every save.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond
	reading int // requests of reads in the disk
	writing int
	// most writes at a time, and few while there are reads.
	most, few int
}

// fewWrites is the part of the writers that go on while there are reads.
const fewWrites = 4

func (g *gate) init(writers int) {
	g.changed.L = &g.mu
	g.most, g.few = writers, max(1, writers/fewWrites)
}

// beginWrite waits for a write's turn.
func (g *gate) beginWrite() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.writing >= g.most || g.reading > 0 && g.writing >= g.few {
		g.changed.Wait()
	}
	g.writing++
}

func (g *gate) endWrite() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing--
	g.changed.Signal()
}

// reads notes that so many requests of reads entered the disk, or left it.
func (g *gate) reads(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reading += n; g.reading == 0 {
		g.changed.Broadcast()
	}
}
