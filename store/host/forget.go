package host

import "github.com/kvconn/kvconn/connector"

// forgetUnits is how many units are looked at under one hold of the lock.
const forgetUnits = 16

// Forget lets go of all records of a namespace, and returns how many. Loads that hold one keep its bytes until they
// release them; nobody else finds it. Records that are being read are left: filling says how many, so that the caller
// can come again.
func (a *Arena) Forget(ns connector.NamespaceDigest) (forgotten, filling int) {
	for first := 0; ; first += forgetUnits {
		a.mu.Lock()
		number, known := a.namespaces[ns] // asked again: it may have been given to another
		end := min(first+forgetUnits, len(a.units))
		for u := first; known && !a.closed && u < end; u++ {
			if at := a.units[u]; at != 0 && a.span(at).first == uint32(u) {
				n, left := a.forgetIn(at, number)
				forgotten, filling = forgotten+n, filling+left
				_, known = a.namespaces[ns]
			}
		}
		a.mu.Unlock()
		if !known || end == len(a.units) {
			return forgotten, filling
		}
	}
}

// ForgetRecords lets go of single records of a namespace, like [Arena.Forget].
func (a *Arena) ForgetRecords(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) (forgotten, filling int) {
	for len(keys) > 0 {
		n := min(len(keys), presentAtOnce)
		gone, left := a.forgetKeys(ns, shard, keys[:n])
		forgotten, filling, keys = forgotten+gone, filling+left, keys[n:]
	}
	return forgotten, filling
}

func (a *Arena) forgetKeys(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) (forgotten, filling int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range keys {
		number, known := a.namespaces[ns] // asked again: it goes with its last record
		if !known || a.closed {
			break
		}
		id := slotKey{ns: number, shard: shard, key: keys[i]}
		at := a.find(a.index.hash(&id), &id)
		if at == 0 {
			continue
		}
		if s := a.slot(at); s.state == slotFilling {
			filling++
		} else {
			a.forgetSlot(at, s)
			forgotten++
		}
	}
	return forgotten, filling
}

// forgetSlot forgets the record of a slot that is not being filled.
func (a *Arena) forgetSlot(id slotID, s *slot) {
	if s.pins == 0 {
		a.evict(id)
	} else {
		a.forgetRecord(id)
		s.state = slotDirty // becomes free when its last user releases it
	}
	a.count.Evictions-- // it made room for nothing
}

// forgetIn forgets the records of a namespace in one span. The span may be dissolved by that.
func (a *Arena) forgetIn(at spanID, ns namespaceID) (forgotten, filling int) {
	first, left := a.firstSlot(at), a.span(at).taken
	for id := first; left > 0; id++ {
		s := a.slot(id)
		if s.state == slotFree {
			continue
		}
		left-- // before the last one goes: the span may go with it
		switch {
		case s.state == slotDirty || s.ns != ns:
			continue
		case s.state == slotFilling:
			filling++
			continue
		}
		a.forgetSlot(id, s)
		forgotten++
	}
	return forgotten, filling
}
