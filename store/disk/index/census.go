package index

import "github.com/kvconn/kvconn/connector"

// Group is what records of one payload size have in common.
type Group struct {
	Namespace uint16
	Shard     connector.Shard
}

// Census counts the records of each group. It looks at every entry and gives way to writers
// after each few thousand. It ends early if until, where not nil, says so of a record's
// group.
func (t *Table) Census(until func(Group) bool) map[Group]int {
	counts := make(map[Group]int)
	for from := Ref(0); ; from += scanRun {
		if !t.censusRun(from, counts, until) {
			return counts
		}
	}
}

func (t *Table) censusRun(from Ref, counts map[Group]int, until func(Group) bool) (more bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || from >= t.limit {
		return false
	}
	last := Group{}
	n := 0
	for ref := from; ref < min(from+scanRun, t.limit); ref++ {
		e := t.entry(ref)
		if e.seq == 0 {
			continue
		}
		// Neighbours are most often of one group: the map is asked once for many.
		if g := (Group{e.namespace, e.shard}); g != last {
			if n > 0 {
				counts[last] += n
			}
			last, n = g, 0
			if until != nil && until(g) {
				counts[g]++
				return false
			}
		}
		n++
	}
	if n > 0 {
		counts[last] += n
	}
	return true
}

// EmptyOf takes the records of a namespace with sequence numbers up to upTo that are not pinned out of a run
// of the table, which begins at from, and appends them to out. left are those that are pinned. The next run
// begins at next, which is NoRef after the last.
func (t *Table) EmptyOf(namespace uint16, upTo uint64, from Ref, out []Removed) (removed []Removed, left int, next Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref := from; ref < from+removeRun; ref++ {
		if t.closed || ref >= t.limit {
			return out, left, NoRef
		}
		e := t.entry(ref)
		switch {
		case e.seq == 0 || e.seq > upTo || e.namespace != namespace:
		case e.pins() > 0:
			left++
		default:
			r, _ := t.remove(ref, e.seq)
			out = append(out, r)
		}
	}
	return out, left, from + removeRun
}
