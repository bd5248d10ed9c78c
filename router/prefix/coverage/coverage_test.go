package coverage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

const (
	holders = 40
	blocks  = 300
)

// model is a coverage by definition: a set of blocks for each holder, and its predictions.
type model struct {
	has       [holders][blocks]bool
	predicted []Prediction
}

func (m *model) count(h int) uint32 {
	n := uint32(0)
	for _, has := range m.has[h] {
		if has {
			n++
		}
	}
	return n
}

func (m *model) hasHoles(h int) bool {
	return slices.Contains(m.has[h][:m.count(h)], false)
}

func (m *model) set(h int, from, to uint32, has bool) (changed uint32) {
	for i := from; i < to; i++ {
		if m.has[h][i] != has {
			m.has[h][i] = has
			changed++
		}
	}
	return changed
}

// end is one more than the last block of a holder that is in a set, or nil for all.
func (m *model) end(of Set) (end uint32) {
	for h := range holders {
		for i, has := range m.has[h] {
			if has && (of == nil || of.Has(Holder(h))) {
				end = max(end, uint32(i)+1)
			}
		}
	}
	for _, p := range m.predicted {
		if of == nil || of.Has(p.Holder) {
			end = max(end, p.End)
		}
	}
	return end
}

func (m *model) check(t *testing.T, c *Coverage, rng *rand.Rand) {
	t.Helper()
	some := 0
	for h := range holders {
		n := m.count(h)
		if n > 0 {
			some++
		}
		if got := c.Count(Holder(h)); got != n {
			t.Fatalf("holder %d has %d blocks, want %d", h, got, n)
		}
		knows := n > 0 || slices.ContainsFunc(m.predicted, func(p Prediction) bool { return p.Holder == Holder(h) })
		if c.Knows(Holder(h)) != knows {
			t.Fatalf("holder %d is known: %v, want %v", h, !knows, knows)
		}
		if f, _, _ := c.find(Holder(h)); (f == formHoled) != m.hasHoles(h) {
			t.Fatalf("holder %d has form %d, holes: %v", h, f, m.hasHoles(h))
		}
		for range 20 {
			if i := rng.Uint32N(blocks); c.Has(Holder(h), i) != m.has[h][i] {
				t.Fatalf("holder %d has block %d: want %v", h, i, m.has[h][i])
			}
		}
	}
	of := Set{rng.Uint64() & rng.Uint64()}
	if c.Holders() != some || c.End(nil) != m.end(nil) || c.End(of) != m.end(of) {
		t.Fatalf("%d holders, ends %d and %d; want %d, %d, %d", c.Holders(), c.End(nil), c.End(of), some, m.end(nil), m.end(of))
	}
}

// change adds or removes some blocks of a holder.
func (m *model) change(t *testing.T, c *Coverage, rng *rand.Rand) *Coverage {
	t.Helper()
	h, from := rng.IntN(holders), rng.Uint32N(blocks)
	if rng.IntN(2) == 0 {
		from = min(from, m.count(h)) // go on where it ends
	}
	to := from + 1 + rng.Uint32N(blocks-from)
	add := rng.IntN(3) > 0
	changed := m.set(h, from, to, add)
	var got uint32
	if add {
		again := uint32(0)
		c, got = c.Add(Holder(h), from, to, func(from, to uint32) { again += to - from })
		if again != to-from-changed {
			t.Fatalf("%d blocks were there, want %d", again, to-from-changed)
		}
	} else {
		c, got = c.Remove(Holder(h), from, to)
	}
	if got != changed {
		t.Fatalf("%d blocks of [%d, %d) changed, want %d", got, from, to, changed)
	}
	return c
}

func (m *model) truncate(t *testing.T, c *Coverage, keep uint32) *Coverage {
	t.Helper()
	var lost, want [holders]uint32
	for h := range want {
		want[h] = m.set(h, keep, blocks, false)
	}
	m.predicted = slices.DeleteFunc(m.predicted, func(Prediction) bool { return keep == 0 })
	for i := range m.predicted {
		m.predicted[i].End = min(m.predicted[i].End, keep)
	}
	c = c.Truncated(keep, func(h Holder, n uint32) { lost[h] += n })
	if lost != want {
		t.Fatalf("lost %v, want %v", lost, want)
	}
	return c
}

func (m *model) predict(c *Coverage, p Prediction) *Coverage {
	m.predicted = append(m.predicted, p)
	return c.WithPrediction(p)
}

func (m *model) expire(c *Coverage, until int64) *Coverage {
	gone := func(p Prediction) bool { return p.Deadline <= until }
	m.predicted = slices.DeleteFunc(m.predicted, gone)
	return c.WithoutPredictions(gone)
}

func TestCoverageIsASetOfBlocksForEachHolder(t *testing.T) {
	rng := seed.Random(t, 1)
	m, c := new(model), new(Coverage)
	groups, steps := 0, 10_000
	if testing.Short() {
		steps = 1000
	}
	for step := range steps {
		switch n := rng.IntN(100); {
		case n < 80:
			c = m.change(t, c, rng)
		case n < 84: // many with the same blocks
			end := 1 + rng.Uint32N(blocks)
			for h := range holders {
				if rng.IntN(3) > 0 {
					m.set(h, 0, blocks, false)
					m.set(h, 0, end, true)
					c, _ = c.Remove(Holder(h), 0, MaxBlocks)
					c, _ = c.Add(Holder(h), 0, end, func(uint32, uint32) { t.Fatal("a block is still there") })
				}
			}
			if c = c.Regrouped(end); c.More != nil && len(c.More.Group) > 0 {
				groups++
			}
		case n < 88:
			c = c.Regrouped(1 + rng.Uint32N(blocks))
		case n < 92:
			c = m.truncate(t, c, rng.Uint32N(blocks))
		case n < 97:
			c = m.predict(c, Prediction{Holder: Holder(rng.IntN(holders)), End: 1 + rng.Uint32N(blocks), Deadline: int64(step + rng.IntN(50))})
		default:
			c = m.expire(c, int64(step))
		}
		m.check(t, c, rng)
	}
	if groups == 0 {
		t.Error("there was never a group")
	}
}

// What a walk has read stays true of the blocks that it read: a clone does not change with its origin.
func TestACloneStaysAsItIs(t *testing.T) {
	rng := seed.Random(t, 2)
	m, c := new(model), new(Coverage)
	for range 100 {
		for range 20 {
			c = m.change(t, c, rng)
		}
		before, clone := *m, c.Truncated(MaxBlocks, nil)
		for range 20 {
			c = m.change(t, c, rng)
		}
		before.check(t, clone, rng)
	}
}

// An event that only lengthens a holder's prefix, or shortens it, allocates nothing.
func TestChangesAtTheEndAreMadeInPlace(t *testing.T) {
	c, _ := new(Coverage).Add(1, 0, 10, func(uint32, uint32) {})
	if n := testing.AllocsPerRun(100, func() {
		longer, _ := c.Add(1, 10, 20, func(uint32, uint32) {})
		shorter, _ := longer.Remove(1, 10, 20)
		if longer != c || shorter != c {
			t.Error("the coverage was replaced")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
