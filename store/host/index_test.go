package host

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"
)

// The index agrees with a map while it grows through several levels and shrinks.
func TestIndexFindsWhatAMapFinds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	g := rand.New(rand.NewPCG(seed, 1))
	a := &Arena{index: newIndex(), opts: Options{unitBytes: unitBytes}, units: make([]spanID, 1)}
	a.slabs = append(a.slabs, slab{})
	for range 16 {
		a.slabs = append(a.slabs, slab{slots: make([]slot, slabSlots)})
	}
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
		r := record(n)
		hash := a.index.hash(&r.ID)
		id, known := is[n]
		if got := a.find(hash, &r.ID); got != id {
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
		if r := record(n); a.find(a.index.hash(&r.ID), &r.ID) != id {
			t.Fatalf("record %d is not found", n)
		}
	}
}

// The garbage collector must have nothing to look for in tables of a hundred million slots,
// and a slot must cost little beside its bytes.
func TestSlotsAreSmallAndHaveNoPointers(t *testing.T) {
	if n := unsafe.Sizeof(slot{}); n > 72 {
		t.Errorf("a slot takes %d bytes", n)
	}
	if n := unsafe.Sizeof(span{}); n > 24 {
		t.Errorf("a span takes %d bytes", n)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[slot](), reflect.TypeFor[span](), reflect.TypeFor[gap]()} {
		for i := range of.NumField() {
			switch f := of.Field(i).Type; f.Kind() {
			case reflect.Pointer, reflect.Slice, reflect.String, reflect.Map, reflect.Interface, reflect.Chan, reflect.Func:
				t.Errorf("%s of %s has pointers", of.Field(i).Name, of)
			}
		}
	}
}
