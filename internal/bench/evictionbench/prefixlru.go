package evictionbench

import (
	"encoding/binary"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// prefixLRU is the store's policy, run by the store's index: least recently used first,
// of a chain used at one time its end first.
type prefixLRU struct {
	table *index.Table
	slots index.Range
	free  []index.Ref
	seq   uint64
}

// NewStore returns the store's policy, and a function that frees it.
func NewStore(capacity int) (Cache, func(), error) {
	t := index.New()
	base, err := t.AddSlots(uint32(capacity))
	if err != nil {
		return nil, nil, err
	}
	c := &prefixLRU{table: t, slots: index.Range{Base: base, Slots: uint32(capacity)}}
	t.Track(class, c.slots, 0)
	c.free = t.Survey(c.slots, nil)
	return c, t.Close, nil
}

// class is the only one.
const class = 1

func keyOf(k int32) (key connector.Key) {
	binary.LittleEndian.PutUint64(key[:], (uint64(k)+1)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(key[8:], (uint64(k)+1)*0xD6E8FEB86659FD93)
	return key
}

// Use implements [Cache].
func (c *prefixLRU) Use(blocks []int32) int {
	keys := make([]connector.Key, len(blocks))
	for i, b := range blocks {
		keys[i] = keyOf(b)
	}
	hits, pins := c.table.Prefix(0, []connector.Shard{0}, keys, nil)
	c.table.Unpin(pins...)
	for i := range keys {
		if _, there := c.table.Get(index.ID{Key: keys[i]}, false); i < hits || there {
			continue
		}
		c.seq++
		in := index.Insertion{ID: index.ID{Key: keys[i]}, Ref: c.slot(), Seq: c.seq, Bytes: 1}
		if i > 0 {
			in.Parent = keys[i-1]
		}
		batch := []index.Insertion{in}
		c.table.Place(batch)
		c.table.Insert(batch)
	}
	return hits
}

// slot returns a free slot, as the store's evictor does.
func (c *prefixLRU) slot() index.Ref {
	for len(c.free) == 0 {
		if c.table.Chosen(class) == 0 {
			if _, ok := c.table.Choose(class); !ok {
				panic("policy: nothing can go")
			}
		}
		for _, r := range c.table.Evict(class, 1, nil) {
			c.free = append(c.free, r.Ref)
		}
	}
	ref := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	return ref
}
