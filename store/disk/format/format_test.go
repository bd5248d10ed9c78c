package format

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvconn/kvconn/store/record"
)

var testSegment = Segment{ID: 9, Slots: 100, SlotBytes: 8192}

func TestEveryFlippedBitOfAHeaderIsFound(t *testing.T) {
	b := make([]byte, record.HeaderBytes)
	testSegment.Encode(b)
	if err := new(Segment).Decode(b); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * record.HeaderBytes {
		b[bit/8] ^= 1 << (bit % 8)
		if err := new(Segment).Decode(b); !errors.Is(err, record.ErrBad) {
			t.Fatalf("bit %d: %v", bit, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// first makes a header of format 2 one of format 1, which says nothing of needs.
func first(b []byte) {
	b[offSegVersion] = record.VersionFirst
	clear(b[offSegNeeds:])
	record.PutSum(b)
}

func TestHeadersOfFormat1AreRead(t *testing.T) {
	b := make([]byte, record.HeaderBytes)
	testSegment.Encode(b)
	first(b)
	after := Segment{Needs: 1}
	if err := after.Decode(b); err != nil || after != testSegment {
		t.Errorf("%+v, %v, want %+v", after, err, testSegment)
	}
}

// What a newer program wrote is neither damaged nor readable.
func TestNewerHeadersAreToldFromBadOnes(t *testing.T) {
	b := make([]byte, record.HeaderBytes)
	for bit := range 32 {
		segment := testSegment
		segment.Needs = 1 << bit
		segment.Encode(b)
		if err := new(Segment).Decode(b); !errors.Is(err, record.ErrNewer) {
			t.Error(bit, err)
		}
	}
}

func TestSegmentGeometryIsBounded(t *testing.T) {
	for _, s := range []Segment{{Slots: 0, SlotBytes: 8192}, {Slots: 1, SlotBytes: 4096}, {Slots: 1, SlotBytes: 8193}, {Slots: 1, SlotBytes: 1 << 40}} {
		b := make([]byte, record.HeaderBytes)
		s.Encode(b)
		if err := new(Segment).Decode(b); !errors.Is(err, record.ErrBad) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b := make([]byte, record.HeaderBytes)
	testSegment.Encode(b)
	f.Add(bytes.Clone(b))
	first(b)
	f.Add(bytes.Clone(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == record.HeaderBytes {
			record.PutSum(b) // without it no input gets past the checksum
		}
		again := make([]byte, record.HeaderBytes)
		var s, s2 Segment
		if s.Decode(b) != nil {
			return
		}
		if s.FileBytes() < s.SlotBytes || s.Offset(s.Slots) != s.FileBytes() {
			t.Errorf("%+v", s)
		}
		if s.Encode(again); s2.Decode(again) != nil || s2 != s {
			t.Errorf("%+v became %+v", s, s2)
		}
	})
}
