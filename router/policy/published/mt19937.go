package published

import "math/bits"

// mt19937 is the Mersenne Twister of Matsumoto and Nishimura (ACM TOMACS 8, 1998), seeded and used for
// permutations as Python's random module does it. The published routers break ties with it.
type mt19937 struct {
	state [624]uint32
	next  int
}

// seed starts the sequence of an integer: an array seed of its 32-bit words.
func (m *mt19937) seed(v uint64) {
	key := [2]uint32{uint32(v), uint32(v >> 32)}
	words := 1
	if key[1] != 0 {
		words = 2
	}
	s := &m.state
	s[0] = 19650218
	for i := 1; i < len(s); i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i, j := 1, 0
	for range len(s) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1664525) + key[j] + uint32(j)
		if i++; i == len(s) {
			s[0], i = s[len(s)-1], 1
		}
		if j++; j == words {
			j = 0
		}
	}
	for range len(s) - 1 {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1566083941) - uint32(i)
		if i++; i == len(s) {
			s[0], i = s[len(s)-1], 1
		}
	}
	s[0] = 1 << 31
	m.next = len(s)
}

func (m *mt19937) twist() {
	s := &m.state
	n := len(s)
	for i := range s {
		y := s[i]&0x80000000 | s[(i+1)%n]&0x7fffffff
		s[i] = s[(i+397)%n] ^ y>>1 ^ -(y&1)&0x9908b0df
	}
	m.next = 0
}

func (m *mt19937) uint32() uint32 {
	if m.next == len(m.state) {
		m.twist()
	}
	y := m.state[m.next]
	m.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// below returns a number below n > 0: the top bits of a draw, drawn again until they are.
func (m *mt19937) below(n uint32) uint32 {
	for {
		if v := m.uint32() >> (32 - bits.Len32(n)); v < n {
			return v
		}
	}
}

// permute fills p with a permutation of 0 to len(p)-1: Fisher-Yates from the end.
func (m *mt19937) permute(p []int32) {
	for i := range p {
		p[i] = int32(i)
	}
	for i := len(p) - 1; i > 0; i-- {
		j := m.below(uint32(i) + 1)
		p[i], p[j] = p[j], p[i]
	}
}
