// Package mintree keeps many bounds and finds the least of them.
package mintree

import "slices"

// fan is how many children a node of a tree has.
const fan = 64

// None is the bound of a leaf that has nothing to give.
const None = ^uint64(0)

// Tree keeps a bound for each leaf and finds the least of them. A bound is changed and the
// least is found in steps whose number grows with the logarithm of the leaves: four for a
// thousand million of them. What grows is small, so that no addition takes long.
type Tree struct {
	blocks []*leafBlock
	// up[0] holds the least bound of each block, up[k] that of each fan elements of
	// up[k-1]; the last level is one element.
	up   [][]uint64
	idle []uint32
	next uint32
}

type leafBlock struct {
	bounds [fan]uint64
	names  [fan]uint32
}

// Add makes a leaf with a name, bound None, and returns its number.
func (m *Tree) Add(name uint32) uint32 {
	leaf := m.next
	if n := len(m.idle); n > 0 {
		leaf = m.idle[n-1]
		m.idle = m.idle[:n-1]
	} else {
		m.next++
		if leaf%fan == 0 {
			m.grow()
		}
	}
	m.blocks[leaf/fan].names[leaf%fan] = name
	return leaf
}

func (m *Tree) grow() {
	b := new(leafBlock)
	for i := range b.bounds {
		b.bounds[i] = None
	}
	m.blocks = append(m.blocks, b)
	n := len(m.blocks)
	for level := 0; ; level++ {
		if level == len(m.up) {
			least := None
			if level > 0 {
				least = slices.Min(m.up[level-1])
			}
			m.up = append(m.up, []uint64{least})
		}
		if len(m.up[level]) < n {
			m.up[level] = append(m.up[level], None)
		}
		if n == 1 {
			return
		}
		n = (n + fan - 1) / fan
	}
}

// Drop takes a leaf out.
func (m *Tree) Drop(leaf uint32) {
	m.Set(leaf, None)
	m.idle = append(m.idle, leaf)
}

// Name is the name of a leaf.
func (m *Tree) Name(leaf uint32) uint32 { return m.blocks[leaf/fan].names[leaf%fan] }

// Bound is a leaf's bound.
func (m *Tree) Bound(leaf uint32) uint64 { return m.blocks[leaf/fan].bounds[leaf%fan] }

// Lower makes a leaf's bound at most v.
func (m *Tree) Lower(leaf uint32, v uint64) {
	b := &m.blocks[leaf/fan].bounds[leaf%fan]
	if *b <= v {
		return
	}
	*b = v
	for _, level := range m.up {
		leaf /= fan
		if level[leaf] <= v {
			return
		}
		level[leaf] = v
	}
}

// Set changes a leaf's bound.
func (m *Tree) Set(leaf uint32, v uint64) {
	below := m.blocks[leaf/fan].bounds[:]
	below[leaf%fan] = v
	for _, level := range m.up {
		leaf /= fan
		least := slices.Min(below)
		if level[leaf] == least {
			return
		}
		level[leaf] = least
		first := leaf / fan * fan
		below = level[first:min(first+fan, uint32(len(level)))]
	}
}

// Least returns a leaf with the least bound of all, which is None if there is nothing.
func (m *Tree) Least() (leaf uint32, bound uint64) {
	if len(m.up) == 0 {
		return 0, None
	}
	at := 0
	bound = m.up[len(m.up)-1][0]
	if bound == None {
		return 0, None
	}
	for level := len(m.up) - 2; level >= 0; level-- {
		first := at * fan
		at = first + slices.Index(m.up[level][first:min(first+fan, len(m.up[level]))], bound)
	}
	return uint32(at*fan + slices.Index(m.blocks[at].bounds[:], bound)), bound
}

// Bytes is the memory of the tree.
func (m *Tree) Bytes() int64 {
	const blockBytes = fan * 12
	n := int64(len(m.blocks)) * (blockBytes + 8)
	for _, level := range m.up {
		n += int64(len(level)) * 8
	}
	return n + int64(cap(m.idle))*4
}
