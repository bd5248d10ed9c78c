package published

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/zeebo/xxh3"
)

// homes maps conversations to the ids of their ranks, up to a bound: the least recently used is forgotten. It
// keeps hashes of their names, which clients choose and may be long; two of one hash would share a rank.
type homes struct {
	lru *simplelru.LRU[xxh3.Uint128, int32]
}

// maxHomes is how many names are remembered.
const maxHomes = 65536

func newHomes(most int) homes {
	lru, err := simplelru.NewLRU[xxh3.Uint128, int32](most, nil)
	if err != nil { // most is not positive: the options have a default
		panic(err)
	}
	return homes{lru}
}

// get returns the rank of a conversation.
func (h homes) get(name string) (rank int32, ok bool) { return h.lru.Peek(xxh3.HashString128(name)) }

// touch makes a known conversation the most recently used one.
func (h homes) touch(name string) { h.lru.Get(xxh3.HashString128(name)) }

// set gives a conversation a rank and makes it the most recently used one.
func (h homes) set(name string, rank int32) { h.lru.Add(xxh3.HashString128(name), rank) }
