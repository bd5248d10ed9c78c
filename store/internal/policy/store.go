package policy

import (
	"encoding/binary"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/index"
)

// prefixLRU is the store's policy, run by the store's index: least recently used first,
// of a chain used at one time its end first, a few percent of the store at a time.
type prefixLRU struct {
	table   *index.Table
	slots   index.Range
	free    []index.Ref
	victims []index.Victim
	warmest uint64
	seq     uint64
	scanned int
}

// NewStore returns the store's policy, and a function that frees it.
func NewStore(capacity int) (Cache, func(), error) {
	t := index.New()
	base, err := t.AddSlots(uint32(capacity))
	if err != nil {
		return nil, nil, err
	}
	c := &prefixLRU{table: t, slots: index.Range{Base: base, Slots: uint32(capacity)}}
	c.free = t.EmptySlots(c.slots, nil)
	return c, t.Close, nil
}

func keyOf(k uint32) (key connector.Key) {
	binary.LittleEndian.PutUint64(key[:], (uint64(k)+1)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(key[8:], (uint64(k)+1)*0xD6E8FEB86659FD93)
	return key
}

// Use implements [Cache].
func (c *prefixLRU) Use(blocks []uint32) int {
	keys := make([]connector.Key, len(blocks))
	for i, b := range blocks {
		keys[i] = keyOf(b)
	}
	hits, pins := c.table.Prefix(0, []connector.Shard{0}, keys, nil)
	c.table.Unpin(pins...)
	for i := range keys {
		if i < hits || c.table.Has(index.ID{Key: keys[i]}) {
			continue
		}
		c.seq++
		in := index.Insertion{ID: index.ID{Key: keys[i]}, Ref: c.slot(), Seq: c.seq, Bytes: 1}
		if i > 0 {
			in.Parent = keys[i-1]
		}
		batch := []index.Insertion{in}
		c.table.Insert(batch)
		if index.Order(batch[0].Tick, batch[0].Depth) <= c.warmest {
			c.victims = nil
		}
	}
	return hits
}

// slot returns a free slot, as the store's evictor does.
func (c *prefixLRU) slot() index.Ref {
	const part, least = 32, 64
	for len(c.free) == 0 {
		var out []index.Removed
		c.victims, out = c.table.Evict(c.victims, 1, nil)
		for _, r := range out {
			c.free = append(c.free, r.Ref)
		}
		if len(out) == 0 {
			c.victims = c.table.Coldest([]index.Range{c.slots}, max(least, int(c.slots.Slots)/part))
			c.warmest = c.victims[len(c.victims)-1].Order()
			c.scanned++
		}
	}
	ref := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	return ref
}
