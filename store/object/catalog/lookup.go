package catalog

import (
	"time"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

// lookupRun is how many keys are looked up under one hold of the lock, all shards taken together.
const lookupRun = 1024

// Place is where a record lies in the bucket.
type Place struct {
	Object  format.ObjectID
	Ordinal uint16 // of the record in its object
	// From and Bytes are the slot of the record: header, stored bytes, zeros. It is never longer than a slot
	// of the payload's size.
	From, Bytes int64
	Needs       uint16
	Codec       uint8
}

// Prefix is how many leading blocks of chain are offered with every one of the shards. If pin is not nil,
// the objects that they are in count as used, and stay readable until [Catalog.Unpin]; pin may have others
// already. The call owns it until it returns.
func (c *Catalog) Prefix(ns connector.NamespaceDigest, s []connector.Shard, chain []connector.Key, pin *Pins) (blocks int) {
	if len(s) == 0 {
		return 0
	}
	var now format.Seconds
	if pin != nil {
		now = c.o.Now()
	}
	step := max(lookupRun/len(s), 1)
	for blocks < len(chain) {
		run := chain[blocks:min(len(chain), blocks+step)]
		n := c.prefixRun(ns, s, run, pin, now)
		blocks += n
		if n < len(run) {
			break
		}
	}
	return blocks
}

func (c *Catalog) prefixRun(ns connector.NamespaceDigest, s []connector.Shard, run []connector.Key, pin *Pins, now format.Seconds) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	mark := 0
	if pin != nil {
		pin.belongTo(c)
		mark = len(pin.objects)
	}
	found := len(run)
	for i := range s {
		sh := c.shard(ns, s[i])
		if sh == nil {
			found = 0
			break
		}
		if found = c.stretch(sh.served(), run[:found], pin); found == 0 {
			break
		}
	}
	if pin != nil {
		c.pin(pin, mark, found, now)
	}
	return found
}

// cursor goes along the records of an object.
type cursor struct {
	record *record
	left   int // records after it
}

// next reports whether the record after this one is that of a key, and goes there.
func (u *cursor) next(key *connector.Key) bool {
	if u.left == 0 {
		return false
	}
	r := (*record)(unsafe.Add(unsafe.Pointer(u.record), unitBytes))
	if r.key != *key || r.at&isLoose != 0 {
		return false
	}
	u.record = r
	u.left--
	return true
}

// stretch returns how many leading keys are offered in a class, and appends their objects to pin.
func (c *Catalog) stretch(k *class, keys []connector.Key, pin *Pins) int {
	if k == nil {
		return 0
	}
	var u cursor
	var w warmer
	for i := range keys {
		if u.next(&keys[i]) {
			continue
		}
		c.warm(&w, k, keys, i)
		at := c.offer(k, &keys[i])
		if at == hashtable.NoRef {
			return i
		}
		object := c.seek(&u, at)
		w.stride = u.left + 1
		if pin != nil {
			pin.objects = append(pin.objects, object)
			pin.from = append(pin.from, uint16(i))
		}
	}
	return len(keys)
}

// seek puts a cursor on a record, and returns its object.
func (c *Catalog) seek(u *cursor, at ref) ref {
	object := c.rowOf(at)
	u.record = c.record(at)
	u.left = int(c.row(object).records) - 1 - u.record.ordinal()
	return object
}

// warmer reads ahead what a look-up will read where objects begin, all together, so that the cache misses
// overlap. It takes the objects to be of one size. It helps, and is not needed.
type warmer struct {
	stride int // the records of the last object from where it was entered on, 0 before the first
	until  int // what begins before this key was read
	read   uint64
}

// warmGroup objects are read ahead together.
const warmGroup = 16

// warm is called where the object of keys[i] is to be found.
func (c *Catalog) warm(w *warmer, k *class, keys []connector.Key, i int) {
	if i < w.until || w.stride == 0 {
		return
	}
	var buckets [warmGroup]*hashtable.Bucket
	var first [warmGroup]uint64
	var tags [warmGroup]uint8
	var refs [warmGroup]ref
	n := 0
	for ; n < warmGroup && i < len(keys); i += w.stride {
		h := k.hash(&keys[i])
		r, at := c.hash.home(h)
		buckets[n], tags[n], first[n] = &r.Buckets[at], hashtable.TagOf(h), r.Buckets[at].FirstTags()
		n++
	}
	w.until = i
	for j := range n {
		if refs[j] = buckets[j].Candidate(first[j], tags[j]); refs[j] != hashtable.NoRef {
			first[j] = uint64(c.record(refs[j]).at)
		}
	}
	for j := range n {
		if refs[j] != hashtable.NoRef && first[j]&isRow == 0 {
			w.read ^= uint64(c.row(refs[j] - ref(first[j]&ordinalMask) - rowUnits).flags)
		}
	}
}

// offer returns a record that is offered, or NoRef.
func (c *Catalog) offer(k *class, key *connector.Key) ref {
	at, _ := c.hash.find(k.hash(key), func(at ref) bool {
		return c.matches(at, k, key) && c.row(c.rowOf(at)).offered()
	})
	return at
}

// Present sets at[i] where the record of keys[i] is offered, and leaves the rest of at as it is.
func (c *Catalog) Present(ns connector.NamespaceDigest, s connector.Shard, keys []connector.Key, at []bool) {
	for len(keys) > 0 {
		n := min(len(keys), lookupRun)
		c.presentRun(ns, s, keys[:n], at[:n])
		keys, at = keys[n:], at[n:]
	}
}

func (c *Catalog) presentRun(ns connector.NamespaceDigest, s connector.Shard, keys []connector.Key, at []bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k := c.servedClass(ns, s)
	if k == nil {
		return
	}
	var u cursor
	for i := range keys {
		if u.next(&keys[i]) {
			at[i] = true
		} else if r := c.offer(k, &keys[i]); r != hashtable.NoRef {
			at[i] = true
			c.seek(&u, r)
		}
	}
}

func (c *Catalog) servedClass(ns connector.NamespaceDigest, s connector.Shard) *class {
	if sh := c.shard(ns, s); sh != nil {
		return sh.served()
	}
	return nil
}

// Used counts as a use of the objects that have the records of keys. Gaps do not end it.
func (c *Catalog) Used(ns connector.NamespaceDigest, s []connector.Shard, keys []connector.Key) {
	now := c.o.Now()
	for i := range s {
		for rest := keys; len(rest) > 0; {
			n := min(len(rest), lookupRun)
			c.usedRun(ns, s[i], rest[:n], now)
			rest = rest[n:]
		}
	}
}

func (c *Catalog) usedRun(ns connector.NamespaceDigest, s connector.Shard, keys []connector.Key, now format.Seconds) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k := c.servedClass(ns, s)
	if k == nil {
		return
	}
	var u cursor
	for i := range keys {
		if u.next(&keys[i]) {
			continue
		}
		if at := c.offer(k, &keys[i]); at != hashtable.NoRef {
			c.use(c.row(c.seek(&u, at)), now)
		}
	}
}

// Locate finds a record with payloads of a size, also in an object that is leaving.
func (c *Catalog) Locate(id store.RecordID, payloadBytes int) (Place, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	sh := c.shard(id.Namespace, id.Shard)
	if sh == nil {
		return Place{}, false
	}
	k := sh.of(payloadBytes)
	if k == nil {
		return Place{}, false
	}
	at := c.offer(k, &id.Key)
	if at == hashtable.NoRef {
		var ok bool
		if at, ok = c.hash.find(k.hash(&id.Key), func(at ref) bool {
			return c.matches(at, k, &id.Key) && c.row(c.rowOf(at)).readable()
		}); !ok {
			return Place{}, false
		}
	}
	return c.place(at), true
}

// place is where a record lies.
func (c *Catalog) place(at ref) Place {
	r, o := c.record(at), c.row(c.rowOf(at))
	g := &c.groups[o.group]
	end := format.SlotsBytes(o.bytes, int(o.runs), int(o.records))
	if r.ordinal()+1 < int(o.records) {
		end = int64(c.record(at+1).start) * format.Unit
	}
	from := int64(r.start) * format.Unit
	return Place{
		Object: o.id, Ordinal: uint16(r.ordinal()), From: from,
		Bytes: min(end-from, format.SlotBytes(int(g.class.bytes))), Needs: g.needs, Codec: g.codec,
	}
}

// Pins are objects that a lease keeps readable. The zero value has none. They are for one goroutine at a time.
type Pins struct {
	objects []ref
	from    []uint16 // the block of a look-up's run that each was found for
	// generation is the catalog's when the first was pinned.
	generation uint64
	until      time.Time
}

// Until is when a lease on the pins has to end: half the grace after the first of them was pinned. It is zero
// if there are none.
func (p *Pins) Until() time.Time {
	if len(p.objects) == 0 {
		return time.Time{}
	}
	return p.until
}

// belongTo forgets pins of what was forgotten. The catalog's lock is held.
func (p *Pins) belongTo(c *Catalog) {
	if p.generation != c.generation {
		p.objects, p.generation = p.objects[:0], c.generation
	}
}

// pin pins what a look-up appended from mark on if it is of the first found blocks, and lets go of the rest. The lock is held for reading.
func (c *Catalog) pin(p *Pins, mark, found int, now format.Seconds) {
	if mark == 0 && found > 0 {
		p.until = time.Now().Add(c.o.Grace / 2)
	}
	kept := mark
	for i, from := range p.from {
		if int(from) >= found {
			continue
		}
		at := p.objects[mark+i]
		o := c.row(at)
		o.pin()
		c.use(o, now)
		p.objects[kept] = at
		kept++
	}
	p.objects, p.from = p.objects[:kept], p.from[:0]
}

// Unpin lets go of all pins. The value may be used again.
func (c *Catalog) Unpin(p *Pins) {
	for rest := p.objects; len(rest) > 0; {
		n := min(len(rest), lookupRun)
		c.unpinRun(p, rest[:n])
		rest = rest[n:]
	}
	p.objects = p.objects[:0]
}

func (c *Catalog) unpinRun(p *Pins, run []ref) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p.generation != c.generation {
		return
	}
	for _, at := range run {
		c.row(at).unpin()
	}
}
