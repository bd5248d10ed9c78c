package prefix

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
)

const headShards = 64

// heads finds a run by its first block's key. Walks read it beside the writer. It holds
// all children of all runs: a chained key has one place in the trie.
type heads struct {
	shards [headShards]headShard
	// gone fills the slots of dropped runs, which walks must skip.
	gone *run
	// account is a count of bytes that the tables add their own to.
	account *int64
}

type headShard struct {
	table atomic.Pointer[headTable]
	// used counts the slots that are not empty, live those with a run.
	used, live int
}

// headTable is an open-addressing table with linear probing, of a power of two of slots.
type headTable struct {
	slots []atomic.Pointer[run]
}

func newHeads(account *int64) *heads {
	h := &heads{gone: &run{}, account: account}
	for i := range h.shards {
		h.shards[i].table.Store(&headTable{slots: make([]atomic.Pointer[run], 4)})
	}
	return h
}

func (h *heads) shard(k *connector.Key) *headShard { return &h.shards[k[15]%headShards] }

func (t *headTable) home(k *connector.Key) int {
	return int(binary.LittleEndian.Uint64(k[:8]) & uint64(len(t.slots)-1))
}

func (t *headTable) next(i int) int { return (i + 1) & (len(t.slots) - 1) }

// find returns the run that begins with k, or nil.
func (h *heads) find(k *connector.Key) *run {
	t := h.shard(k).table.Load()
	for i := t.home(k); ; i = t.next(i) {
		r := t.slots[i].Load()
		if r == nil || r.head == *k && r != h.gone {
			return r
		}
	}
}

// add enters a run whose head is not there.
func (h *heads) add(r *run) {
	s := h.shard(&r.head)
	t := s.table.Load()
	if s.used+1 > len(t.slots)*3/4 {
		h.rebuild(s, s.live+1)
		t = s.table.Load()
	}
	i := t.home(&r.head)
	for {
		at := t.slots[i].Load()
		if at == nil {
			s.used++
			break
		}
		if at == h.gone {
			break
		}
		i = t.next(i)
	}
	t.slots[i].Store(r)
	s.live++
}

func (h *heads) remove(r *run) {
	s := h.shard(&r.head)
	t := s.table.Load()
	i := t.home(&r.head)
	for t.slots[i].Load() != r {
		if t.slots[i].Load() == nil {
			panic("prefix: a run is not in the table of heads")
		}
		i = t.next(i)
	}
	t.slots[i].Store(h.gone)
	if s.live--; len(t.slots) > 4 && s.live < len(t.slots)/8 {
		h.rebuild(s, s.live)
	}
}

// rebuild publishes a table with room for a number of runs and without dropped ones.
func (h *heads) rebuild(s *headShard, live int) {
	old := s.table.Load()
	size := 4
	for size < live*2 {
		size *= 2
	}
	t := &headTable{slots: make([]atomic.Pointer[run], size)}
	for i := range old.slots {
		r := old.slots[i].Load()
		if r == nil || r == h.gone {
			continue
		}
		at := t.home(&r.head)
		for t.slots[at].Load() != nil {
			at = t.next(at)
		}
		t.slots[at].Store(r)
	}
	s.used = s.live
	s.table.Store(t)
	*h.account += 8 * int64(size-len(old.slots))
}
