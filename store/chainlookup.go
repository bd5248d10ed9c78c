package store

import (
	"bytes"
	"time"

	"github.com/kvconn/kvconn/connector"
)

const (
	// lookupBlocks are looked for at one time: the memory of a look-up does not grow with its chain.
	lookupBlocks = 1024
	// maxTierLeases bounds the leases of the tiers that one look-up takes. Tiers that have every other
	// block each would need one for each block; a tier has 32,768 for all look-ups.
	maxTierLeases = 2048
)

// chainLookup is the memory of one call of [Chain.Lookup].
type chainLookup struct {
	list  []tierLease
	cells []uint8 // which tier serves a block: a row for each shard
	at    []bool
	group []connector.Shard
	taken []bool // shards that were in a group
}

// nobody is the cell of a block that no tier has. There are fewer tiers than that.
const nobody = 0xff

// Lookup finds the longest prefix that the tiers have together. The shards of a block may be in several tiers.
// A block is leased in one tier for each shard: the one that the blocks before it are leased in, else the fastest.
func (c *Chain) Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (int, LeaseID) {
	if len(c.tiers) == 1 {
		blocks, id := c.Tier.Lookup(ns, shards, chain, ttl)
		c.tellUsed(ns, shards, chain[:blocks])
		return blocks, id
	}
	if len(chain) == 0 || len(shards) == 0 {
		return 0, 0
	}
	l := c.leases.begin()
	// Most often the fastest tier has all that there is.
	blocks, id := c.Tier.Lookup(ns, shards, chain, ttl)
	if blocks > 0 {
		l.list = append(l.list, tierLease{0, id})
	}
	for blocks < len(chain) {
		part := chain[blocks:min(len(chain), blocks+lookupBlocks)]
		n := c.lookupPart(l, ns, shards, part, ttl)
		blocks += n
		if n < len(part) {
			break
		}
	}
	id = c.leases.hold(l)
	if blocks == 0 && id != 0 { // some shards of the first block
		c.Release(id)
		id = 0
	}
	c.tellUsed(ns, shards, chain[:blocks])
	return blocks, id
}

// lookupPart leases the leading blocks of a part of a chain, and returns how many there are.
func (c *Chain) lookupPart(l *chainLookup, ns connector.NamespaceDigest, shards []connector.Shard, part []connector.Key, ttl time.Duration) int {
	blocks := c.serve(l, ns, shards, part)
	clear(l.taken)
	for i := range shards {
		if l.taken[i] || blocks == 0 {
			continue
		}
		row := l.cells[i*len(part):][:blocks]
		l.group = l.group[:0]
		for j := i; j < len(shards); j++ {
			if !l.taken[j] && bytes.Equal(row, l.cells[j*len(part):][:blocks]) {
				l.taken[j] = true
				l.group = append(l.group, shards[j])
			}
		}
		blocks = c.lease(l, ns, part[:blocks], row, ttl)
	}
	return blocks
}

// serve finds out which tier serves each block of each shard, and returns how many leading blocks have all.
func (c *Chain) serve(l *chainLookup, ns connector.NamespaceDigest, shards []connector.Shard, part []connector.Key) int {
	l.grow(len(shards), len(part), len(c.tiers))
	blocks := len(part)
	for i, shard := range shards {
		if blocks == 0 {
			break
		}
		at := l.at[:len(c.tiers)*blocks]
		clear(at)
		for t, tier := range c.tiers {
			tier.Present(ns, shard, part[:blocks], at[t*blocks:][:blocks])
		}
		row := l.cells[i*len(part):][:blocks]
		blocks = assign(row, at)
	}
	return blocks
}

// assign sets which tier serves each block of a row, as at says which of them have it: a part of it for each tier.
// It returns how many leading blocks any has.
func assign(row []uint8, at []bool) int {
	last := uint8(nobody)
	for b := range row {
		if last == nobody || !at[int(last)*len(row)+b] {
			last = nobody
			for t := 0; t*len(row) < len(at); t++ {
				if at[t*len(row)+b] {
					last = uint8(t)
					break
				}
			}
		}
		if last == nobody {
			return b
		}
		row[b] = last
	}
	return len(row)
}

// lease leases blocks for a group of shards as their row says, and returns how many leading ones it could: records
// may have gone since they were seen.
func (c *Chain) lease(l *chainLookup, ns connector.NamespaceDigest, part []connector.Key, row []uint8, ttl time.Duration) int {
	for first := 0; first < len(part); {
		end, tier := first+1, int(row[first])
		for end < len(part) && row[end] == row[first] {
			end++
		}
		if len(l.list) >= maxTierLeases {
			return first
		}
		n, id := c.tiers[tier].Lookup(ns, l.group, part[first:end], ttl)
		if n > 0 {
			l.list = append(l.list, tierLease{tier, id})
		}
		if first += n; first < end {
			return first
		}
	}
	return len(part)
}

// grow makes room for a part of a chain.
func (l *chainLookup) grow(shards, blocks, tiers int) {
	if n := shards * blocks; n > cap(l.cells) {
		l.cells = make([]uint8, n)
	}
	if n := tiers * blocks; n > cap(l.at) {
		l.at = make([]bool, n)
	}
	if shards > cap(l.taken) {
		l.taken, l.group = make([]bool, shards), make([]connector.Shard, 0, shards)
	}
	l.cells, l.at, l.taken = l.cells[:shards*blocks], l.at[:tiers*blocks], l.taken[:shards]
}

// tellUsed says which records a look-up has found.
func (c *Chain) tellUsed(ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key) {
	if len(keys) == 0 {
		return
	}
	for _, u := range c.listeners {
		u.Used(ns, shards, keys)
	}
}
