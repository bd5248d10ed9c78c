package readio

import (
	"testing"
	"testing/synctest"
)

// admitted is how many writes of a size a gate lets in at one time. It runs in a bubble.
func admitted(g *Gate, bytes int64) int {
	const tried = 100
	for range tried {
		go g.BeginWrite(bytes)
	}
	synctest.Wait() // the others wait for their turn
	_, most := g.State()
	for range tried {
		g.EndWrite(bytes)
		synctest.Wait()
	}
	return most
}

// Defect 30: writes kept to 8 at a time, 2 beside reads, however fast the disk is.
func TestWritesFollowTheDisk(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		name              string
		writers           int
		budget, bytes     int64
		alone, besideRead int
	}{
		{"not measured", 0, 0, 640 * kib, 8, 2},
		{"slow disk", 0, 1 * mib, 640 * kib, 8, 2},
		{"fast disk", 0, 32 * mib, 640 * kib, 51, 12},
		{"fast disk, small records", 0, 32 * mib, 28 * kib, 64, 16},
		{"fast disk, large records", 0, 32 * mib, 16 * mib, 8, 2},
		{"as configured", 12, 32 * mib, 640 * kib, 12, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := NewGate(c.writers)
			if c.writers == 0 {
				g.SetBudget(c.budget)
			}
			if n := admitted(g, c.bytes); n != c.alone {
				t.Errorf("%s: %d writes at a time, want %d", c.name, n, c.alone)
			}
			g.reads(1)
			if n := admitted(g, c.bytes); n != c.besideRead {
				t.Errorf("%s: %d writes beside reads, want %d", c.name, n, c.besideRead)
			}
			g.reads(-1)
		})
	}
}
