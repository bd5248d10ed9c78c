package host

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
)

// The index agrees with a map while it grows through several levels and shrinks.
func TestIndexFindsWhatAMapFinds(t *testing.T) {
	g := seed.Random(t, 0)
	a := &Arena{index: newIndex(), opts: Options{unitBytes: unitBytes}, units: make([]spanID, 1)}
	a.slabs = append(a.slabs, slab{})
	for range 16 {
		a.slabs = append(a.slabs, slab{slots: make([]slot, slabSlots)})
	}
	c := &Account{arena: a, ns: 1}
	const numbers = 15 * slabSlots
	is := map[int]slotID{}
	var free []slotID
	for id := slotID(slabSlots); id < 16*slabSlots; id++ {
		free = append(free, id)
	}
	for round := range 200_000 {
		n := g.IntN(numbers)
		if round > 150_000 && len(is) > 0 { // mostly removals
			for n = range is {
				break
			}
		}
		public := record(n)
		r := c.record(&public)
		hash := a.index.hash(&r.slotKey)
		id, known := is[n]
		if got := a.find(hash, &r.slotKey); got != id {
			t.Fatalf("record %d: slot %d, want %d", n, got, id)
		}
		if known {
			a.remove(id)
			free = append(free, id)
			delete(is, n)
			continue
		}
		id, free = free[len(free)-1], free[:len(free)-1]
		a.slot(id).set(&r, hash)
		a.insert(id)
		is[n] = id
	}
	if a.index.len != len(is) || a.index.level <= firstLevel {
		t.Errorf("%d records of %d, level %d", a.index.len, len(is), a.index.level)
	}
	for n, id := range is {
		public := record(n)
		if r := c.record(&public); a.find(a.index.hash(&r.slotKey), &r.slotKey) != id {
			t.Fatalf("record %d is not found", n)
		}
	}
}

// The index knows a record by 64 bits of its key and 16 of its parent's. One that agrees in
// all of them gets no other record's bytes: proof, namespace and shard are compared in full.
func TestRecordsOfEqualHashesAreToldApart(t *testing.T) {
	const payload = 5000
	for name, change := range map[string]func(*store.Record){
		"key and proof":     func(r *store.Record) { r.ID.Key[3]++; r.Proof[31] ^= 1 },
		"proof's first bit": func(r *store.Record) { r.Proof[0] ^= 0x80 },
		"namespace":         func(r *store.Record) { r.ID.Namespace[31]++ },
		"shard":             func(r *store.Record) { r.ID.Shard++ },
	} {
		a := newArena(t, 4)
		c := newAccount(t, a, AccountOptions{})
		kept := record(1)
		wanted := kept
		change(&wanted)
		theirs := newAccount(t, a, AccountOptions{Namespace: wanted.ID.Namespace})
		key := theirs.record(&wanted)
		var s, other Slot
		acquire(t, c, &s, kept, payload, Fill)
		copy(s.Bytes(), "kept")
		a.mu.Lock() // as if both ids had one hash
		a.remove(s.slot)
		a.slot(s.slot).hash = a.index.hash(&key.slotKey)
		s.hash = a.slot(s.slot).hash
		a.insert(s.slot)
		a.mu.Unlock()
		// While it is read nobody waits for it who wants the other.
		acquire(t, theirs, &other, wanted, payload, Fill)
		other.Release()
		a.mu.Lock()
		p := a.slot(s.slot)
		p.state = slotClean
		a.cleanBytes += int64(s.class.slotBytes)
		a.mu.Unlock()
		s.Release()
		if theirs.lookup(&other, wanted, payload) {
			t.Errorf("%s: the other record's bytes are a hit", name)
		}
		acquire(t, theirs, &other, wanted, payload, Fill)
		copy(other.Bytes(), "wanted")
		other.Publish(wanted)
		other.Release()
		if theirs.lookup(&other, wanted, payload) {
			if string(other.Bytes()[:6]) != "wanted" {
				t.Errorf("%s: a hit with %q", name, other.Bytes()[:6])
			}
			other.Release()
		}
		c.Close()
		theirs.Close()
	}
}

// A prompt of many blocks is looked for in several parts.
func TestPresentFindsEachOfManyRecords(t *testing.T) {
	const many = 2*presentAtOnce + 5
	a := newArena(t, many/16+1)
	c := newAccount(t, a, AccountOptions{})
	keys, at, want := make([]connector.Key, many), make([]bool, many), make([]bool, many)
	for n := range many {
		r := record(n)
		if keys[n], want[n] = r.ID.Key, n%3 == 0; want[n] {
			var s Slot
			acquire(t, c, &s, r, 4096, Fill)
			s.Publish(r)
			s.Release()
		}
	}
	at[1], want[1] = true, true // what was set stays
	if a.Present(connector.NamespaceDigest{}, 0, keys, at); !slices.Equal(at, want) {
		t.Errorf("present %v, want %v", at, want)
	}
}

// The garbage collector must have nothing to look for in tables of a hundred million slots,
// and a slot must cost little beside its bytes.
func TestSlotsAreSmallAndHaveNoPointers(t *testing.T) {
	docs.Says(t, "adr/0005-leader-and-workers.md", fmt.Sprintf("%d bytes a slot", unsafe.Sizeof(slot{})))
	if n := unsafe.Sizeof(span{}); n > 24 {
		t.Errorf("a span takes %d bytes", n)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[slot](), reflect.TypeFor[span]()} {
		for i := range of.NumField() {
			switch f := of.Field(i).Type; f.Kind() {
			case reflect.Pointer, reflect.Slice, reflect.String, reflect.Map, reflect.Interface, reflect.Chan, reflect.Func:
				t.Errorf("%s of %s has pointers", of.Field(i).Name, of)
			}
		}
	}
}
