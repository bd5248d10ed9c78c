package policy

import "github.com/zeebo/xxh3"

// homes maps conversations to the ids of their ranks. It holds the most recently used ones up to a
// bound, in slots linked by index, so that a known conversation costs no allocation. It keeps hashes of
// their names, which clients choose and may be long; two of one hash would share a rank.
type homes struct {
	max            int
	slots          []home
	index          map[xxh3.Uint128]int32
	oldest, newest int32 // -1 for none
}

type home struct {
	key          xxh3.Uint128
	rank         int32
	older, newer int32
}

func newHomes(maxEntries int) homes {
	return homes{max: maxEntries, index: map[xxh3.Uint128]int32{}, oldest: -1, newest: -1}
}

// get returns the rank of a conversation.
func (h *homes) get(key string) (rank int32, ok bool) {
	at, ok := h.index[xxh3.HashString128(key)]
	if !ok {
		return -1, false
	}
	return h.slots[at].rank, true
}

// touch makes a known conversation the most recently used one.
func (h *homes) touch(key string) {
	if at, ok := h.index[xxh3.HashString128(key)]; ok && at != h.newest {
		h.unlink(at)
		h.append(at)
	}
}

// set gives a conversation a rank and makes it the most recently used one; the least recently used one
// makes room.
func (h *homes) set(name string, rank int32) {
	key := xxh3.HashString128(name)
	at, ok := h.index[key]
	switch {
	case ok:
		h.unlink(at)
	case len(h.slots) < h.max:
		at = int32(len(h.slots))
		h.slots = append(h.slots, home{})
	default:
		at = h.oldest
		delete(h.index, h.slots[at].key)
		h.unlink(at)
	}
	if !ok {
		h.slots[at].key = key
		h.index[key] = at
	}
	h.slots[at].rank = rank
	h.append(at)
}

func (h *homes) append(at int32) {
	s := &h.slots[at]
	s.older, s.newer = h.newest, -1
	if h.newest >= 0 {
		h.slots[h.newest].newer = at
	} else {
		h.oldest = at
	}
	h.newest = at
}

func (h *homes) unlink(at int32) {
	s := &h.slots[at]
	if s.older >= 0 {
		h.slots[s.older].newer = s.newer
	} else {
		h.oldest = s.newer
	}
	if s.newer >= 0 {
		h.slots[s.newer].older = s.older
	} else {
		h.newest = s.older
	}
}
