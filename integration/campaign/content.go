// Package campaign attacks a store as a whole and judges it only from the outside: by what was
// saved and what it returns. [Trial] damages one file of a store's directory and starts the
// store; [Case] runs steps on a store under a script of faults. Both follow from a seed, and
// [Reduce] makes a case that fails as small as possible.
//
// docs/reliability.md says how to run it. Product code does not import it.
package campaign

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Size is a size of records. Each size has its own namespace.
type Size int

// The sizes: neither of the usual two is a whole number of pages, and their slots differ. A
// huge record fits no small cap.
const (
	Narrow Size = iota
	Wide
	sizes
	Huge     = sizes
	allSizes = Huge + 1
)

func sizeNames() [allSizes]string { return [...]string{"narrow", "wide", "huge"} }

// String is the size's word in a case.
func (z Size) String() string { return sizeNames()[z] }

// Bytes is the payload's size.
func (z Size) Bytes() int { return [...]int{3500, 20_000, 15 << 20}[z] }

// Record is a record whose key, proof and content follow from its numbers.
type Record struct {
	Size         Size
	Chain, Block int
}

// key is the record's key.
func (r Record) key() connector.Key {
	var k connector.Key
	binary.LittleEndian.PutUint64(k[:], uint64(r.Chain)*0x9E3779B97F4A7C15+uint64(r.Size)+1)
	binary.LittleEndian.PutUint64(k[8:], uint64(r.Block)*0xD6E8FEB86659FD93+7)
	return k
}

func (r Record) parent() (k connector.Key) {
	if r.Block > 0 {
		r.Block--
		k = r.key()
	}
	return k
}

func (r Record) proof() (p connector.Proof) {
	binary.LittleEndian.PutUint64(p[:], uint64(r.Chain)<<32|uint64(r.Block))
	p[31] = byte(r.Size)
	return p
}

// fill writes the record's content to a buffer of its size.
func (r Record) fill(b []byte) {
	g := rand.NewPCG(uint64(r.Chain)<<8|uint64(r.Size), uint64(r.Block))
	var word [8]byte
	for at := 0; at < len(b); at += len(word) {
		binary.LittleEndian.PutUint64(word[:], g.Uint64())
		copy(b[at:], word[:])
	}
}

// payload is the record's content, in a buffer for the store.
func (r Record) payload() []byte {
	b := store.AlignedBuffer(r.Size.Bytes())
	r.fill(b)
	return b
}

// Chain returns n records, each the parent of the next.
func Chain(size Size, chain, n int) []Record {
	out := make([]Record, n)
	for i := range out {
		out[i] = Record{size, chain, i}
	}
	return out
}

// contents keeps the payloads of records that are compared again and again.
type contents struct {
	mu sync.Mutex
	of map[Record][]byte
}

func (c *contents) get(r Record) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[Record][]byte)
	}
	b := c.of[r]
	if b == nil {
		b = make([]byte, r.Size.Bytes())
		r.fill(b)
		c.of[r] = b
	}
	return b
}
