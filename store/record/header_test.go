package record

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
)

func testHeader() Header {
	r := Header{SegmentID: 3, Slot: 7, Seq: 1<<40 + 5, Shard: 2, PayloadBytes: 4097, PayloadSum: 0xdeadbeef, KeyScheme: KeySchemeTokens}
	for i := range r.Key {
		r.Key[i], r.Parent[i], r.Store[i], r.Scope[i] = byte(i), byte(2*i), byte(3*i), byte(11*i)
	}
	for i := range r.Proof {
		r.Proof[i], r.Namespace[i] = byte(5*i), byte(7*i)
	}
	return r
}

func TestRecordHeaderRoundTrip(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		want := Header{
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
		var got Header
		if err := got.Decode(b); err != nil || got != want {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	})
}

func TestEveryFlippedBitOfAHeaderIsFound(t *testing.T) {
	r := testHeader()
	b := make([]byte, HeaderBytes)
	r.Encode(b)
	if err := new(Header).Decode(b); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * HeaderBytes {
		b[bit/8] ^= 1 << (bit % 8)
		if err := new(Header).Decode(b); !errors.Is(err, ErrBad) {
			t.Fatalf("bit %d: %v", bit, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

func TestBlankSlotIsNotBad(t *testing.T) {
	if err := new(Header).Decode(make([]byte, HeaderBytes)); !errors.Is(err, ErrBlank) {
		t.Error(err)
	}
	if err := new(Header).Decode(nil); !errors.Is(err, ErrBad) {
		t.Error(err)
	}
}

// first makes a header of format 2 one of format 1, in which nothing follows the checksum
// of the payload.
func first(b []byte) {
	b[offVersion] = VersionFirst
	clear(b[offNeeds:])
	PutSum(b)
}

func TestHeadersOfFormat1AreRead(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	want.Encode(b)
	first(b)
	want.Scope, want.KeyScheme = connector.UnknownScope, KeySchemeUnknown
	got := testHeader()
	if err := got.Decode(b); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// What a newer program wrote is neither damaged nor readable.
func TestNewerHeadersAreToldFromBadOnes(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	for name, change := range map[string]func(){
		"version": func() { b[offVersion]++; PutSum(b) },
		"feature": func() { b[offNeeds+3] |= 0x80; PutSum(b) },
		"cipher":  func() { b[offNeeds], b[offAlgorithm] = byte(NeedsDecryption), 2; PutSum(b) },
		"codec":   func() { b[offNeeds], b[offCodec] = byte(NeedsDecoding), 2; PutSum(b) },
	} {
		want.Encode(b)
		change()
		if err := new(Header).Decode(b); !errors.Is(err, ErrNewer) || errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
		b[HeaderBytes/2] ^= 1
		if err := new(Header).Decode(b); !errors.Is(err, ErrBad) {
			t.Errorf("%s, damaged: %v", name, err)
		}
	}
	for _, h := range []Header{
		{Needs: NeedsDecryption, PayloadBytes: 9, StoredBytes: 8, Cipher: Cipher{Algorithm: 1}},
		{Needs: NeedsDecoding, PayloadBytes: 9, StoredBytes: 9, Codec: 1},
	} {
		h.Encode(b)
		if err := new(Header).Decode(b); !errors.Is(err, ErrBad) {
			t.Errorf("%+v: %v", h, err)
		}
	}
	want.Encode(b)
	b[offNeeds+3] |= 0x80
	PutSum(b)
	var got Header
	if err := got.Decode(b); got.Key != want.Key || got.Seq != want.Seq || got.Scope != want.Scope {
		t.Errorf("%+v, %v: does not say what it is", got, err)
	}
}

// Reserved bytes are for what an older program may pass over.
func TestReservedBytesAreNotLookedAt(t *testing.T) {
	b := make([]byte, HeaderBytes)
	want := testHeader()
	want.Encode(b)
	b[offCodec+1], b[offHeaderSum-1] = 1, 1
	PutSum(b)
	var got Header
	if err := got.Decode(b); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	b := make([]byte, HeaderBytes)
	r := testHeader()
	r.Encode(b)
	f.Add(bytes.Clone(b))
	first(b)
	f.Add(bytes.Clone(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == HeaderBytes {
			PutSum(b) // without it no input gets past the checksum
		}
		again := make([]byte, HeaderBytes)
		var r, r2 Header
		if r.Decode(b) == nil && len(b) == HeaderBytes && b[offVersion] == Version {
			if r.Encode(again); r2.Decode(again) != nil || r2 != r {
				t.Errorf("%+v became %+v", r, r2)
			}
		}
	})
}
