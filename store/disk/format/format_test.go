package format

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
)

func testHeader() Record {
	r := Record{SegmentID: 3, Slot: 7, Seq: 1<<40 + 5, Shard: 2, PayloadBytes: 4097, PayloadSum: 0xdeadbeef, KeyScheme: KeySchemeTokens}
	for i := range r.Key {
		r.Key[i], r.Parent[i], r.Store[i], r.Scope[i] = byte(i), byte(2*i), byte(3*i), byte(11*i)
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
		copy(want.Scope[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "scope"))
		want.KeyScheme = KeyScheme(rapid.Byte().Draw(t, "scheme"))
		want.Flags = rapid.Uint16().Draw(t, "flags")
		want.Cipher.KeyID = rapid.Uint32().Draw(t, "key id")
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

// first makes a header of format 2 one of format 1, in which nothing follows the checksum
// of the payload.
func first(b []byte, end int) {
	b[offVersion] = versionFirst
	clear(b[end:])
	seal(b)
}

func TestHeadersOfFormat1AreRead(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	want.Encode(b)
	first(b, offNeeds)
	want.Scope, want.KeyScheme = connector.UnknownScope, KeySchemeUnknown
	got := testHeader()
	if err := got.Decode(b); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	segment := Segment{ID: 9, Slots: 100, SlotBytes: 8192}
	segment.Encode(b)
	first(b, offSegNeeds)
	after := Segment{Needs: 1}
	if err := after.Decode(b); err != nil || after != segment {
		t.Errorf("%+v, %v, want %+v", after, err, segment)
	}
}

// What a newer program wrote is neither damaged nor readable.
func TestNewerHeadersAreToldFromBadOnes(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	for name, change := range map[string]func(){
		"version": func() { b[offVersion]++; seal(b) },
		"feature": func() { b[offNeeds+3] |= 0x80; seal(b) },
		"cipher":  func() { b[offNeeds] |= byte(NeedsDecryption); seal(b) },
	} {
		want.Encode(b)
		change()
		if err := new(Record).Decode(b); !errors.Is(err, ErrNewer) || errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
		b[HeaderBytes/2] ^= 1
		if err := new(Record).Decode(b); !errors.Is(err, ErrBad) {
			t.Errorf("%s, damaged: %v", name, err)
		}
	}
	want.Encode(b)
	b[offNeeds+3] |= 0x80
	seal(b)
	var got Record
	if err := got.Decode(b); got.Key != want.Key || got.Seq != want.Seq || got.Scope != want.Scope {
		t.Errorf("%+v, %v: does not say what it is", got, err)
	}
	segment := Segment{ID: 9, Slots: 100, SlotBytes: 8192, Needs: 1 << 9}
	segment.Encode(b)
	if err := new(Segment).Decode(b); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
}

// Reserved bytes are for what an older program may pass over.
func TestReservedBytesAreNotLookedAt(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	want.Encode(b)
	b[offStoredBytes+4], b[offHeaderSum-1] = 1, 1
	seal(b)
	var got Record
	if err := got.Decode(b); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
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
	f.Add(bytes.Clone(b))
	first(b, offNeeds)
	f.Add(bytes.Clone(b))
	(&Segment{ID: 9, Slots: 100, SlotBytes: 8192}).Encode(b)
	f.Add(bytes.Clone(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == HeaderBytes {
			seal(b) // without it no input gets past the checksum
		}
		again := make([]byte, HeaderBytes)
		var r, r2 Record
		if r.Decode(b) == nil && len(b) == HeaderBytes && b[offVersion] == Version {
			if r.Encode(again); r2.Decode(again) != nil || r2 != r {
				t.Errorf("%+v became %+v", r, r2)
			}
		}
		var s, s2 Segment
		if s.Decode(b) == nil {
			if s.FileBytes() < s.SlotBytes || s.Offset(s.Slots) != s.FileBytes() {
				t.Errorf("%+v", s)
			}
			if s.Encode(again); s2.Decode(again) != nil || s2 != s {
				t.Errorf("%+v became %+v", s, s2)
			}
		}
	})
}
