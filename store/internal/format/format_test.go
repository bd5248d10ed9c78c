package format

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func testHeader() Record {
	r := Record{SegmentID: 3, Slot: 7, Seq: 1<<40 + 5, Shard: 2, PayloadBytes: 4097, PayloadSum: 0xdeadbeef}
	for i := range r.Key {
		r.Key[i], r.Parent[i], r.Store[i] = byte(i), byte(2*i), byte(3*i)
	}
	for i := range r.Proof {
		r.Proof[i], r.Namespace[i] = byte(5*i), byte(7*i)
	}
	return r
}

func TestRecordHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Record{
			SegmentID: rapid.Uint32().Draw(t, "segment"), Slot: rapid.Uint32().Draw(t, "slot"), Seq: rapid.Uint64().Draw(t, "seq"),
			PayloadBytes: rapid.Uint32().Draw(t, "bytes"), PayloadSum: rapid.Uint64().Draw(t, "sum"),
		}
		copy(want.Key[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
		copy(want.Proof[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "proof"))
		b := make([]byte, HeaderBytes)
		want.Encode(b)
		var got Record
		if err := got.Decode(b); err != nil || got != want {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	})
}

func TestEveryFlippedBitOfAHeaderIsFound(t *testing.T) {
	r := testHeader()
	segment := Segment{ID: 9, Slots: 100, SlotBytes: 8192}
	for name, c := range map[string]struct {
		encode func([]byte)
		decode func([]byte) error
	}{
		"record":  {r.Encode, func(b []byte) error { return new(Record).Decode(b) }},
		"segment": {segment.Encode, func(b []byte) error { return new(Segment).Decode(b) }},
	} {
		b := make([]byte, HeaderBytes)
		c.encode(b)
		if err := c.decode(b); err != nil {
			t.Fatal(name, err)
		}
		for bit := range 8 * HeaderBytes {
			b[bit/8] ^= 1 << (bit % 8)
			if err := c.decode(b); !errors.Is(err, ErrBad) {
				t.Fatalf("%s: bit %d: %v", name, bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestBlankSlotIsNotBad(t *testing.T) {
	if err := new(Record).Decode(make([]byte, HeaderBytes)); !errors.Is(err, ErrBlank) {
		t.Error(err)
	}
	if err := new(Record).Decode(nil); !errors.Is(err, ErrBad) {
		t.Error(err)
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	b := make([]byte, HeaderBytes)
	r := testHeader()
	r.Encode(b)
	b[offVersion]++
	seal(b)
	if err := r.Decode(b); !errors.Is(err, ErrBad) {
		t.Error(err)
	}
}

func TestSegmentGeometryIsBounded(t *testing.T) {
	for _, s := range []Segment{{Slots: 0, SlotBytes: 8192}, {Slots: 1, SlotBytes: 4096}, {Slots: 1, SlotBytes: 8193}, {Slots: 1, SlotBytes: 1 << 40}} {
		b := make([]byte, HeaderBytes)
		s.Encode(b)
		if err := new(Segment).Decode(b); !errors.Is(err, ErrBad) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b := make([]byte, HeaderBytes)
	r := testHeader()
	r.Encode(b)
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = new(Record).Decode(b)
		_ = new(Segment).Decode(b)
	})
}
