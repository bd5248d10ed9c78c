package connector

import (
	"errors"
	"reflect"
	"testing"
)

func testHandoffOffer() *HandoffOffer {
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

func TestHandoffOfferRoundTrip(t *testing.T) {
	want := testHandoffOffer()
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

func FuzzParseHandoffOffer(f *testing.F) {
	f.Add(testHandoffOffer().Append(nil))
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
