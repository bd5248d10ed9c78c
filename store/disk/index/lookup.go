package index

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
)

const (
	// lookupRun is how many keys a lookup takes under one hold of the lock, all shards taken
	// together: a writer waits for one run, not for a chain of a million keys.
	lookupRun = 4096
	// probeGroup keys are probed together, so that their cache misses overlap. 256 looked
	// a long chain up a fifth faster than 32, and 512 no faster.
	probeGroup = 256
)

// Get finds a record. With pin set the record's slot is held until [Table.Unpin].
func (t *Table) Get(id ID, pin bool) (Found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ref := t.find(&id)
	if ref == NoRef {
		return Found{}, false
	}
	e := t.entry(ref)
	if pin {
		e.pin()
	}
	return Found{Ref: ref, Seq: e.seq, Bytes: e.bytes, Depth: e.depth}, true
}

// PinSlot holds the record of a slot, if there is one, until Unpin.
func (t *Table) PinSlot(ref Ref) (ID, Found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if ref >= t.limit {
		return ID{}, Found{}, false
	}
	e := t.entry(ref)
	if e.seq == 0 {
		return ID{}, Found{}, false
	}
	e.pin()
	return ID{e.namespace, e.shard, e.key}, Found{Ref: ref, Seq: e.seq, Bytes: e.bytes, Depth: e.depth}, true
}

// Unpin releases references that Get or Prefix pinned.
func (t *Table) Unpin(refs ...Ref) {
	for len(refs) > 0 {
		n := min(len(refs), lookupRun)
		t.unpinRun(refs[:n])
		refs = refs[n:]
	}
}

func (t *Table) unpinRun(refs []Ref) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return
	}
	for _, ref := range refs {
		t.entry(ref).unpin()
	}
}

// Pinned reports whether someone holds the slot.
func (t *Table) Pinned(ref Ref) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return !t.closed && t.entry(ref).pins() > 0
}

// Prefix finds the longest leading part of chain whose blocks are there with every shard. The
// records found count as used now, and their references are appended to pins, pinned.
func (t *Table) Prefix(namespace uint16, shards []connector.Shard, chain []connector.Key, pins []Ref) (int, []Ref) {
	if len(shards) == 0 {
		return 0, pins
	}
	tick := uint32(t.nextTick())
	step := max(lookupRun/len(shards)&^(probeGroup-1), probeGroup)
	blocks := 0
	for blocks < len(chain) {
		run := chain[blocks:min(len(chain), blocks+step)]
		var n int
		n, pins = t.prefixRun(namespace, shards, run, tick, pins)
		blocks += n
		if n < len(run) {
			break
		}
	}
	return blocks, pins
}

func (t *Table) prefixRun(namespace uint16, shards []connector.Shard, run []connector.Key, tick uint32, pins []Ref) (int, []Ref) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var refs [probeGroup]Ref
	for from := 0; from < len(run); from += probeGroup {
		group := run[from:min(len(run), from+probeGroup)]
		found := len(group)
		mark := len(pins)
		for _, shard := range shards {
			n := t.probe(ID{Namespace: namespace, Shard: shard}, group[:found], &refs)
			found = min(found, n)
			pins = append(pins, refs[:n]...)
			if found == 0 {
				break
			}
		}
		pins = t.keep(pins, mark, len(shards), found, tick)
		if found < len(group) {
			return from + found, pins
		}
	}
	return len(run), pins
}

// Touch makes the records of keys that are there count as used now. Gaps do not end it.
func (t *Table) Touch(namespace uint16, shard connector.Shard, keys []connector.Key) {
	tick := uint32(t.nextTick())
	for i := range keys {
		t.mu.RLock()
		if ref := t.find(&ID{namespace, shard, keys[i]}); ref != NoRef {
			t.entry(ref).touch(tick, 0)
		}
		t.mu.RUnlock()
	}
}

// probe looks up the keys of a group for one shard and returns how many leading ones are
// there. It goes over the group in passes that depend on nothing before them in the pass
// (hash and bucket, reference, entry), so that the cache misses of a group overlap instead
// of following one another.
func (t *Table) probe(id ID, group []connector.Key, refs *[probeGroup]Ref) int {
	var buckets [probeGroup]*hashtable.Bucket
	var first [probeGroup]uint64
	var tags [probeGroup]uint8
	for i := range group {
		id.Key = group[i]
		h := id.hash()
		r, at := t.home(h)
		b := &r.Buckets[at]
		buckets[i], tags[i], first[i] = b, hashtable.TagOf(h), b.FirstTags()
	}
	for i := range group {
		if refs[i] = buckets[i].Candidate(first[i], tags[i]); refs[i] != NoRef {
			first[i] = uint64(t.entry(refs[i]).shard)
		}
	}
	for i := range group {
		id.Key = group[i]
		if refs[i] != NoRef && first[i] == uint64(id.Shard) && t.entry(refs[i]).is(&id) {
			continue
		}
		if refs[i] = t.find(&id); refs[i] == NoRef {
			return i
		}
	}
	return len(group)
}

// keep pins and touches those references of a group, appended shard by shard from mark
// on, that belong to its first found blocks, and drops the rest.
func (t *Table) keep(pins []Ref, mark, shards, found int, tick uint32) []Ref {
	if shards == 1 {
		pins = pins[:mark+found]
		for _, ref := range pins[mark:] {
			t.entry(ref).touch(tick, 1)
		}
		return pins
	}
	kept := mark
	for i := mark; i < len(pins); {
		// The references of one shard are contiguous; each shard found at least as many
		// blocks as the shards after it.
		n := t.sameShard(pins[i:])
		for _, ref := range pins[i : i+min(n, found)] {
			t.entry(ref).touch(tick, 1)
			pins[kept] = ref
			kept++
		}
		i += n
	}
	return pins[:kept]
}

func (t *Table) sameShard(refs []Ref) int {
	shard := t.entry(refs[0]).shard
	n := 1
	for n < len(refs) && t.entry(refs[n]).shard == shard {
		n++
	}
	return n
}
