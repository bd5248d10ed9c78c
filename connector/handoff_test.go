package connector

import (
	"errors"
	"reflect"
	"testing"
)

func testStagedOffer() *HandoffOffer {
	o := &HandoffOffer{First: 2}
	for shard := range Shard(2) {
		s := HandoffShard{Shard: shard}
		for i := range 4 {
			s.Blocks = append(s.Blocks, HandoffBlock{Offset: uint64(shard)<<32 + uint64(i)<<12, Sum: uint64(i)})
		}
		o.Shards = append(o.Shards, s)
	}
	return o
}

func TestStagedOfferRoundTrip(t *testing.T) {
	want := testStagedOffer()
	b := want.Append(nil)
	got, err := ParseHandoffOffer(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for n := range b {
		if n == 4 || n == 4+6+4*16 {
			continue // whole shards
		}
		if _, err := ParseHandoffOffer(b[:n]); !errors.Is(err, ErrPlan) {
			t.Fatalf("cut to %d of %d bytes: %v, want ErrPlan", n, len(b), err)
		}
	}
}

func TestStagedOfferIsTakenInPart(t *testing.T) {
	m := testManifest()
	m.TensorParallel = 2
	o := testStagedOffer()
	l := o.Load(&Alloc{Request: "r", Blocks: [][]uint32{{9, 8, 7, NoBlock, 5, 4}}, Computed: 32, External: 48}, &m)
	if len(l.Transfers) != 2 || l.Transfers[0].Blocks[0].Slot != 7 || l.Transfers[1].Blocks[0].Slot != 5 || len(l.Transfers[1].Blocks) != 1 {
		t.Fatalf("%+v", l)
	}
	if s := l.Transfers[1].Handoff; len(s) != 2 || s[1].Blocks[0].Offset != 1<<32+2<<12 {
		t.Errorf("block 4 is staged at %+v", s)
	}
	// What one shard lacks, nobody has.
	partial := testStagedOffer()
	partial.Shards = partial.Shards[:1]
	for _, tr := range partial.Load(&Alloc{Blocks: [][]uint32{make([]uint32, 6)}, Computed: 32, External: 64}, &m).Transfers {
		if tr.Handoff != nil {
			t.Error("staged though a shard is not")
		}
	}
	// All of the offer is taken.
	for _, tr := range o.Load(&Alloc{Blocks: [][]uint32{make([]uint32, 6)}, Computed: 32, External: 64}, &m).Transfers {
		if len(tr.Handoff) != 2 || len(tr.Blocks) != 4 {
			t.Errorf("%d shards of %d blocks are staged of the whole offer, want 2 of 4", len(tr.Handoff), len(tr.Blocks))
		}
	}
	// More than was offered, or another beginning, has no place.
	for _, a := range []Alloc{
		{Blocks: [][]uint32{make([]uint32, 8)}, Computed: 32, External: 96},
		{Blocks: [][]uint32{make([]uint32, 8)}, Computed: 16, External: 32},
	} {
		for _, tr := range o.Load(&a, &m).Transfers {
			if tr.Handoff != nil {
				t.Errorf("%+v: staged", a)
			}
		}
	}
	if l := (*HandoffOffer)(nil).Load(&Alloc{Blocks: [][]uint32{{1, 2}}, External: 32}, &m); len(l.Transfers) != 1 || l.Transfers[0].Handoff != nil {
		t.Errorf("load without an offer: %+v", l)
	}
}

func FuzzParseHandoffOffer(f *testing.F) {
	f.Add(testStagedOffer().Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseHandoffOffer(b)
		if err != nil {
			return
		}
		again, err := ParseHandoffOffer(o.Append(nil))
		if err != nil || !reflect.DeepEqual(o, again) {
			t.Errorf("changes when encoded again: %v", err)
		}
	})
}
