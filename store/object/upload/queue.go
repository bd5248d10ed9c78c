package upload

import (
	"math"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

const (
	// tick is the unit of the queue's times. They are 32 bits: thirteen years.
	tick            = 100 * time.Millisecond
	maxAge          = 24 * time.Hour
	maxQueueRecords = 1 << 27
)

func ticks(d time.Duration) uint32 { return uint32(min(d/tick, math.MaxUint32/2)) }

// queue has the identities of records that wait. The uploader's mutex guards it.
type queue struct {
	o       *Options
	lanes   map[laneID]*lane
	entries []entry  // 0 is not used
	free    []uint32 // numbers of entries
	records int
	bytes   int64
}

// object is what is uploaded at one time: records of one lane.
type object struct {
	lane         *lane
	payloadBytes int
	items        []item
}

func (q *queue) init(o *Options) {
	q.o, q.lanes, q.entries = o, make(map[laneID]*lane), make([]entry, 1)
}

// lane returns a lane, for records of payloadBytes.
func (q *queue) lane(id laneID, payloadBytes int) *lane {
	l := q.lanes[id]
	if l == nil {
		l = newLane(id, payloadBytes)
		q.lanes[id] = l
	}
	q.resize(l, payloadBytes)
	return l
}

// resize counts a lane's records with another size, which its shard has taken when all were gone.
func (q *queue) resize(l *lane, payloadBytes int) {
	q.bytes += int64(len(l.byKey)) * int64(payloadBytes-l.payloadBytes)
	l.payloadBytes = payloadBytes
}

// add queues a record that is neither there nor under way. It reports false if there is no room.
func (q *queue) add(l *lane, it item) bool {
	if _, there := l.byKey[it.key]; there {
		return true
	}
	if _, there := l.flying[it.key]; there {
		return true
	}
	if q.records >= q.o.QueueRecords || q.bytes+int64(l.payloadBytes) > q.o.QueueBytes {
		return false
	}
	var n uint32
	if last := len(q.free) - 1; last >= 0 {
		n, q.free = q.free[last], q.free[:last]
	} else {
		n = uint32(len(q.entries))
		q.entries = append(q.entries, entry{})
	}
	l.push(q.entries, n, it)
	q.records++
	q.bytes += int64(l.payloadBytes)
	return true
}

// drop takes a record out that is in the first tier no more. It reports whether it was there.
func (q *queue) drop(id store.RecordID) bool {
	l := q.lanes[laneID{id.Namespace, id.Shard}]
	if l == nil || l.byKey[id.Key] == 0 {
		return false
	}
	q.remove(l, l.byKey[id.Key])
	q.forget(l)
	return true
}

func (q *queue) remove(l *lane, n uint32) {
	l.remove(q.entries, n)
	q.records--
	q.bytes -= int64(l.payloadBytes)
	if q.records == 0 { // a backlog's memory is given back
		q.entries, q.free = make([]entry, 1), nil
		return
	}
	q.free = append(q.free, n)
}

// forget lets go of a lane that has nothing.
func (q *queue) forget(l *lane) {
	if len(l.byKey) == 0 && len(l.flying) == 0 {
		delete(q.lanes, l.id)
	}
}

// next returns the lane with the oldest record of those that have an object to upload: enough records,
// or one that has waited long enough, or any if all is to go. Otherwise it returns when to look again.
func (q *queue) next(now uint32, all bool) (l *lane, wait time.Duration) {
	age, first := ticks(q.o.Age), uint32(math.MaxUint32)
	wait = maxAge
	for _, c := range q.lanes {
		if c.oldest == 0 {
			continue
		}
		since := q.entries[c.oldest].since
		if all || since+age <= now || len(c.byKey) >= c.perObject(q.o.ObjectBytes) {
			if since < first {
				l, first = c, since
			}
		} else {
			wait = min(wait, time.Duration(since+age-now)*tick)
		}
	}
	return l, wait
}

// take takes an object's worth of records out of a lane. Runs go whole where they fit; one that does
// not is divided only if the object would be less than half full without it.
func (q *queue) take(l *lane) *object {
	o, most := &object{lane: l, payloadBytes: l.payloadBytes}, l.perObject(q.o.ObjectBytes)
	for l.oldest != 0 && len(o.items) < most {
		room := most - len(o.items)
		run := l.run(q.entries, room+1)
		for _, n := range run {
			q.entries[n].taken = false
		}
		if len(run) > room {
			if len(o.items)*2 >= most {
				break
			}
			run = run[:room]
		}
		for _, n := range run {
			it := q.entries[n].item
			o.items = append(o.items, it)
			l.flying[it.key] = struct{}{}
			q.remove(l, n)
		}
	}
	return o
}

// landed ends an object's time in memory.
func (q *queue) landed(o *object) {
	for i := range o.items {
		delete(o.lane.flying, o.items[i].key)
	}
	q.forget(o.lane)
}

// keys returns the items' keys in dst.
func keys(dst []connector.Key, items []item) []connector.Key {
	dst = dst[:0]
	for i := range items {
		dst = append(dst, items[i].key)
	}
	return dst
}
