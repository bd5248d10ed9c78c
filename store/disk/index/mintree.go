package index

import "slices"

// fan is how many children a node of a minTree has.
const fan = 64

// none is the bound of a leaf that has nothing to give.
const none = ^uint64(0)

// minTree keeps a bound for each leaf and finds the least of them. A bound is changed and the
// least is found in steps whose number grows with the logarithm of the leaves: four for a
// thousand million of them. What grows is small, so that no addition takes long.
type minTree struct {
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

// add makes a leaf with a name, bound none, and returns its number.
func (m *minTree) add(name uint32) uint32 {
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

func (m *minTree) grow() {
	b := new(leafBlock)
	for i := range b.bounds {
		b.bounds[i] = none
	}
	m.blocks = append(m.blocks, b)
	n := len(m.blocks)
	for level := 0; ; level++ {
		if level == len(m.up) {
			least := none
			if level > 0 {
				least = slices.Min(m.up[level-1])
			}
			m.up = append(m.up, []uint64{least})
		}
		if len(m.up[level]) < n {
			m.up[level] = append(m.up[level], none)
		}
		if n == 1 {
			return
		}
		n = (n + fan - 1) / fan
	}
}

// drop takes a leaf out.
func (m *minTree) drop(leaf uint32) {
	m.set(leaf, none)
	m.idle = append(m.idle, leaf)
}

func (m *minTree) name(leaf uint32) uint32 { return m.blocks[leaf/fan].names[leaf%fan] }

// lower makes a leaf's bound at most v.
func (m *minTree) lower(leaf uint32, v uint64) {
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

// set changes a leaf's bound.
func (m *minTree) set(leaf uint32, v uint64) {
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

// least returns a leaf with the least bound of all, which is none if there is nothing.
func (m *minTree) least() (leaf uint32, bound uint64) {
	if len(m.up) == 0 {
		return 0, none
	}
	at := 0
	bound = m.up[len(m.up)-1][0]
	if bound == none {
		return 0, none
	}
	for level := len(m.up) - 2; level >= 0; level-- {
		first := at * fan
		at = first + slices.Index(m.up[level][first:min(first+fan, len(m.up[level]))], bound)
	}
	return uint32(at*fan + slices.Index(m.blocks[at].bounds[:], bound)), bound
}

// bytes is the memory of the tree.
func (m *minTree) bytes() int64 {
	const blockBytes = fan * 12
	n := int64(len(m.blocks)) * (blockBytes + 8)
	for _, level := range m.up {
		n += int64(len(level)) * 8
	}
	return n + int64(cap(m.idle))*4
}
