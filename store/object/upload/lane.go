package upload

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// laneID says whose records a lane has.
type laneID struct {
	ns    connector.NamespaceDigest
	shard connector.Shard
}

// item is a record in the queue.
type item struct {
	key, parent connector.Key
	since       uint32 // tick at which it was queued
}

// entry is an item in its lane: in a list by age, and below its parent. Entries are numbered from 1
// on, 0 is none.
type entry struct {
	item
	older, younger uint32
	// child is the first of the entries whose parent this is, next and prev are others of its parent.
	child, next, prev uint32
	taken             bool // by the run that is being gathered
}

// lane has the queued records of one shard of a namespace. Chains are found in it whatever the
// sequence in which their records came: a snapshot has none.
type lane struct {
	id           laneID
	payloadBytes int
	byKey        map[connector.Key]uint32
	// orphans have the first of the entries whose parent is not in the lane, by that parent.
	orphans map[connector.Key]uint32
	// flying are records of objects in memory.
	flying           map[connector.Key]struct{}
	oldest, youngest uint32
}

func newLane(id laneID, payloadBytes int) *lane {
	return &lane{
		id: id, payloadBytes: payloadBytes,
		byKey: make(map[connector.Key]uint32), orphans: make(map[connector.Key]uint32), flying: make(map[connector.Key]struct{}),
	}
}

// perObject is how many records of the lane fill an object, in slots as the format has them.
func (l *lane) perObject(objectBytes int64) int {
	return int(min(max(objectBytes/int64(headerBytes+store.PayloadBufferSize(l.payloadBytes)), 1), maxObjectRecords))
}

// push puts an entry with a number at the end of the lane.
func (l *lane) push(entries []entry, n uint32, it item) {
	e := &entries[n]
	*e = entry{item: it, older: l.youngest, child: l.orphans[it.key]}
	delete(l.orphans, it.key)
	l.byKey[it.key] = n
	if l.youngest != 0 {
		entries[l.youngest].younger = n
	} else {
		l.oldest = n
	}
	l.youngest = n
	if p := l.parent(n, it.parent); p != 0 {
		e.next, entries[p].child = entries[p].child, n
	} else {
		e.next, l.orphans[it.parent] = l.orphans[it.parent], n
	}
	if e.next != 0 {
		entries[e.next].prev = n
	}
}

// parent is the entry with the key, unless it is entry n itself.
func (l *lane) parent(n uint32, key connector.Key) uint32 {
	if p := l.byKey[key]; p != n {
		return p
	}
	return 0
}

// remove takes an entry out.
func (l *lane) remove(entries []entry, n uint32) {
	e := &entries[n]
	if e.older != 0 {
		entries[e.older].younger = e.younger
	} else {
		l.oldest = e.younger
	}
	if e.younger != 0 {
		entries[e.younger].older = e.older
	} else {
		l.youngest = e.older
	}
	if e.next != 0 {
		entries[e.next].prev = e.prev
	}
	switch p := l.parent(n, e.parent); {
	case e.prev != 0:
		entries[e.prev].next = e.next
	case p != 0:
		entries[p].child = e.next
	case e.next != 0:
		l.orphans[e.parent] = e.next
	default:
		delete(l.orphans, e.parent)
	}
	delete(l.byKey, e.key)
	if e.child != 0 {
		l.orphans[e.key] = e.child
	}
}

// run gathers the chain that the oldest entry is in: from its first ancestor in the lane, through the
// entry itself, down to a leaf. Only the first most are returned. All that it passes is marked as taken,
// since a chain of keys that somebody made up might end in itself.
func (l *lane) run(entries []entry, most int) []uint32 {
	var up []uint32
	for n := l.oldest; n != 0 && !entries[n].taken; n = l.parent(n, entries[n].parent) {
		entries[n].taken = true
		up = append(up, n)
	}
	down := entries[l.oldest].child
	slices.Reverse(up)
	for _, n := range up[min(most, len(up)):] {
		entries[n].taken = false
	}
	run := up[:min(most, len(up))]
	for n := down; n != 0 && len(run) < most && !entries[n].taken; n = entries[n].child {
		entries[n].taken = true
		run = append(run, n)
	}
	return run
}
