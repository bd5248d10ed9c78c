package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/seal"
)

// testRing has the keys with these numbers.
func testRing(t testing.TB, numbers ...int) *seal.Ring {
	t.Helper()
	keys := make([]seal.Key, len(numbers))
	for k, n := range numbers {
		for i := range keys[k] {
			keys[k][i] = byte(n + i*i)
		}
	}
	r, err := seal.New(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func testCodec(t testing.TB) *codec.Codec {
	t.Helper()
	c, err := codec.New(1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ways are the ways in which a record is stored.
var ways = []struct {
	name               string
	sealed, compressed bool
}{{"plain", false, false}, {"sealed", true, false}, {"compressed", false, true}, {"both", true, true}}

// smooth is a payload of bf16 that shrinks.
func smooth(count int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	p := store.AlignedBuffer(2 * count)
	for i := range count {
		binary.LittleEndian.PutUint16(p[2*i:], uint16(0x3f00+r.IntN(128))|uint16(r.IntN(2))<<15)
	}
	return p
}

// built makes slots of payloads in one way.
type built struct {
	slot    []byte
	header  Header
	payload []byte
	want    Want
	opener  Opener
}

func build(t testing.TB, sealed, compressed bool, payload []byte) *built {
	t.Helper()
	var b Builder
	o := Opener{Codec: testCodec(t)}
	if sealed {
		b.Ring = testRing(t, 1)
		o.Ring = testRing(t, 2, 1)
	}
	if compressed {
		b.Chooser = codec.NewChooser(o.Codec)
	}
	s := &built{header: testHeader(), payload: payload, opener: o}
	s.slot = make([]byte, HeaderBytes+store.PayloadBufferSize(len(payload))+seal.TagBytes)
	s.slot = s.slot[:b.BuildSlot(s.slot, &s.header, payload, 2)]
	s.want = Want{
		Store: s.header.Store, SegmentID: 3, Slot: 7, Seq: s.header.Seq, PayloadBytes: len(payload),
		ID: store.RecordID{Namespace: s.header.Namespace, Shard: 2, Key: s.header.Key},
	}
	if n := s.header.Needs; n&NeedsDecryption != 0 != sealed || n&NeedsDecoding != 0 != compressed {
		t.Fatalf("needs %#x", n)
	}
	return s
}

// open returns the payload of a slot.
func open(slot []byte, o *Opener, w *Want) ([]byte, error) {
	var h Header
	header := bytes.Clone(slot[:HeaderBytes])
	if err := o.Begin(&h, header, w); err != nil {
		return nil, err
	}
	stored := bytes.Clone(slot[HeaderBytes : HeaderBytes+h.Stored()])
	payload := stored
	if h.Needs != 0 {
		payload = make([]byte, h.PayloadBytes)
	}
	err := o.Open(&h, header, payload, stored)
	if !bytes.Equal(header, slot[:HeaderBytes]) {
		return payload, errors.New("the header was changed")
	}
	return payload, err
}

func TestRecordsComeBack(t *testing.T) {
	for _, w := range ways {
		for _, count := range []int{2200, 4500, 10000} {
			s := build(t, w.sealed, w.compressed, smooth(count))
			if got, err := open(s.slot, &s.opener, &s.want); err != nil || !bytes.Equal(got, s.payload) {
				t.Errorf("%s: %v", w.name, err)
			}
			if want := HeaderBytes + store.PayloadBufferSize(s.header.Stored()); len(s.slot) != want {
				t.Errorf("%s: slot of %d bytes, want %d", w.name, len(s.slot), want)
			}
			if w.sealed && bytes.Contains(s.slot, s.payload[:64]) {
				t.Errorf("%s: the payload is in the slot", w.name)
			}
		}
	}
}

// A payload may lie in its slot already: an uploader reads it there.
func TestSlotIsBuiltInPlace(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		payload := smooth(2048)
		var b Builder
		o := Opener{}
		if sealed {
			b.Ring, o.Ring = testRing(t, 1), testRing(t, 1)
		}
		s := build(t, false, false, payload)
		object := make([]byte, 3*HeaderBytes)
		for i := range object {
			object[i] = 0xee
		}
		in := object[HeaderBytes : HeaderBytes+len(payload)]
		copy(in, payload)
		if n := b.BuildSlot(object, &s.header, in, 0); n != 2*HeaderBytes {
			t.Fatalf("%d bytes", n)
		}
		if got, err := open(object, &o, &s.want); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("sealed %v: %v", sealed, err)
		}
		for i, c := range object[2*HeaderBytes:] {
			if c != 0xee {
				t.Fatalf("byte %d after the slot has changed", i)
			}
		}
	}
}

func TestEveryFlippedBitOfARecordIsFound(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(2200))
		for bit := range 8 * (HeaderBytes + s.header.Stored()) {
			s.slot[bit/8] ^= 1 << (bit % 8)
			if _, err := open(s.slot, &s.opener, &s.want); err == nil || errors.Is(err, store.ErrUnreadable) {
				t.Fatalf("%s: bit %d: %v", w.name, bit, err)
			}
			s.slot[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// Whoever has no key may compute checksums: the tag covers all of a header.
func TestSealedHeadersCannotBeForged(t *testing.T) {
	for _, w := range ways[1:] {
		if !w.sealed {
			continue
		}
		s := build(t, true, w.compressed, smooth(2200))
		end := HeaderBytes + s.header.Stored()
		for at := range end {
			if at >= offSum && at < offSum+8 || at >= offHeaderSum && at < HeaderBytes {
				continue // checksums, which the tag replaces
			}
			forged := bytes.Clone(s.slot)
			forged[at] ^= 0x40
			binary.LittleEndian.PutUint64(forged[offSum:], PayloadSum(forged[HeaderBytes:end]))
			PutSum(forged[:HeaderBytes])
			var h Header
			if h.Decode(forged[:HeaderBytes]) != nil {
				continue
			}
			// Whatever is wanted, it is what the header says.
			want := Want{
				Store: h.Store, SegmentID: h.SegmentID, Slot: h.Slot, Seq: h.Seq, PayloadBytes: int(h.PayloadBytes),
				ID: store.RecordID{Namespace: h.Namespace, Shard: h.Shard, Key: h.Key},
			}
			if h.Stored() > len(s.slot)-HeaderBytes {
				continue
			}
			if _, err := open(forged, &s.opener, &want); err == nil {
				t.Fatalf("%s: byte %d was changed", w.name, at)
			}
		}
	}
}

// Whoever has no key may say in a header that a key was used: what is not sealed is refused all the same.
func TestUnsealedRecordsThatNameAKeyAreRefused(t *testing.T) {
	for _, w := range ways {
		if w.sealed {
			continue
		}
		s := build(t, false, w.compressed, smooth(4500))
		h := s.header
		h.Cipher.Algorithm, h.Cipher.KeyID = seal.Algorithm, testRing(t, 1).KeyID()
		h.Encode(s.slot[:HeaderBytes])
		o := Opener{Ring: testRing(t, 1), Codec: testCodec(t)}
		if _, err := open(s.slot, &o, &s.want); !errors.Is(err, ErrUnsealed) {
			t.Errorf("%s: %v", w.name, err)
		}
		if _, err := open(s.slot, &Opener{Codec: testCodec(t)}, &s.want); err != nil {
			t.Errorf("%s, without a key file: %v", w.name, err)
		}
	}
}

func TestMovedRecordsAreRefused(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(4500))
		for name, change := range map[string]func(*Want){
			"store":     func(w *Want) { w.Store[3]++ },
			"segment":   func(w *Want) { w.SegmentID++ },
			"slot":      func(w *Want) { w.Slot++ },
			"write":     func(w *Want) { w.Seq++ },
			"namespace": func(w *Want) { w.ID.Namespace[0]++ },
			"shard":     func(w *Want) { w.ID.Shard++ },
			"key":       func(w *Want) { w.ID.Key[15]++ },
			"length":    func(w *Want) { w.PayloadBytes++ },
		} {
			want := s.want
			change(&want)
			if _, err := open(s.slot, &s.opener, &want); err == nil || errors.Is(err, store.ErrUnreadable) {
				t.Errorf("%s of another %s: %v", w.name, name, err)
			}
		}
	}
	h := testHeader()
	r := store.Record{Parent: h.Parent, Proof: h.Proof}
	if err := h.CheckPrefix(&r); err != nil {
		t.Error(err)
	}
	other := r
	other.Parent[0]++
	if err := h.CheckPrefix(&other); !errors.Is(err, store.ErrMismatch) {
		t.Error(err)
	}
	r.Proof[0]++
	if err := h.CheckPrefix(&r); !errors.Is(err, store.ErrMismatch) {
		t.Error(err)
	}
}

func TestKeysDecideWhatIsAccepted(t *testing.T) {
	sealed, plain := build(t, true, false, smooth(4096)), build(t, false, false, smooth(4096))
	for name, c := range map[string]struct {
		of   *built
		ring *seal.Ring
		want error
	}{
		"no key":                   {sealed, nil, ErrKey},
		"wrong key":                {sealed, testRing(t, 3), ErrKey},
		"same key":                 {sealed, testRing(t, 1), nil},
		"key of before a rotation": {sealed, testRing(t, 3, 1), nil},
		"unsealed":                 {plain, testRing(t, 1), ErrUnsealed},
		"unsealed without key":     {plain, nil, nil},
	} {
		payload, err := open(c.of.slot, &Opener{Ring: c.ring}, &c.of.want)
		if !errors.Is(err, c.want) || c.want != nil && !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == nil && !bytes.Equal(payload, c.of.payload) {
			t.Errorf("%s: other bytes", name)
		}
		if c.want == ErrKey && !bytes.Contains([]byte(err.Error()), []byte(seal.KeyName(sealed.header.Cipher.KeyID))) {
			t.Errorf("%s: %v does not name the key", name, err)
		}
	}
}

// Without the key a check verifies what is stored, and gets nothing.
func TestSumsAreEnoughForACheck(t *testing.T) {
	for _, w := range ways {
		s := build(t, w.sealed, w.compressed, smooth(4500))
		check := Opener{SumsOnly: true}
		got, err := open(s.slot, &check, &s.want)
		if err != nil || w.name != "plain" && !bytes.Equal(got, make([]byte, len(got))) {
			t.Errorf("%s: %v", w.name, err)
		}
		s.slot[HeaderBytes+100] ^= 1
		if _, err := open(s.slot, &check, &s.want); !errors.Is(err, errPayloadSum) {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}

func TestGoldenSlots(t *testing.T) {
	counting := func(from byte, b []byte) {
		for i := range b {
			b[i] = from + byte(i)
		}
	}
	h := Header{
		SegmentID: 0x05060708, Slot: 0x090a0b0c, Seq: 0x0d0e0f1011121314, Shard: 0x0102, Depth: 0x0304, KeyScheme: KeySchemeEngine,
	}
	counting(0x10, h.Store[:])
	counting(0x20, h.Namespace[:])
	counting(0x40, h.Key[:])
	counting(0x50, h.Parent[:])
	counting(0x60, h.Proof[:])
	counting(0xa0, h.Scope[:])
	payload := make([]byte, 2000)
	for i := range 1000 {
		binary.LittleEndian.PutUint16(payload[2*i:], 0x3f80+uint16(i%2))
	}
	want := Want{
		Store: h.Store, SegmentID: h.SegmentID, Slot: h.Slot, Seq: h.Seq, PayloadBytes: len(payload),
		ID: store.RecordID{Namespace: h.Namespace, Shard: h.Shard, Key: h.Key},
	}
	for _, w := range ways {
		golden, err := os.ReadFile(filepath.Join("testdata", w.name+".bin"))
		if err != nil {
			t.Fatal(err)
		}
		o := Opener{Codec: testCodec(t)}
		if w.sealed {
			o.Ring = testRing(t, 1)
		}
		if got, err := open(golden, &o, &want); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%s: %v", w.name, err)
		}
		var got Header
		if err := got.Decode(golden[:HeaderBytes]); err != nil || got.Scope != h.Scope || got.KeyScheme != h.KeyScheme || got.Depth != h.Depth {
			t.Errorf("%s: %v, %+v", w.name, err, got)
		}
		again := make([]byte, HeaderBytes)
		if got.Encode(again); !bytes.Equal(again, golden[:HeaderBytes]) {
			t.Errorf("%s: the header is written in another way", w.name)
		}
		if w.name == "plain" {
			slot, mine := make([]byte, 2*HeaderBytes), h
			if n := new(Builder).BuildSlot(slot, &mine, payload, 2); !bytes.Equal(slot[:n], golden) {
				t.Error("a plain slot is built in another way")
			}
		}
	}
}

func TestPlainRecordsDoNotAllocate(t *testing.T) {
	s := build(t, false, false, smooth(4096))
	var b Builder
	header, h := make([]byte, HeaderBytes), s.header
	n := testing.AllocsPerRun(100, func() {
		b.Build(&h, header, nil, s.payload, 0)
		var got Header
		if err := s.opener.Begin(&got, header, &s.want); err != nil {
			t.Fatal(err)
		}
		if err := s.opener.Open(&got, header, s.payload, s.payload); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzOpen(f *testing.F) {
	for _, w := range ways {
		s := build(f, w.sealed, w.compressed, smooth(2200))
		f.Add(s.slot)
	}
	ring, c := testRing(f, 1), testCodec(f)
	f.Fuzz(func(t *testing.T, slot []byte) {
		if len(slot) < HeaderBytes {
			return
		}
		PutSum(slot[:HeaderBytes])
		var h Header
		if h.Decode(slot[:HeaderBytes]) != nil || h.Stored() > len(slot)-HeaderBytes || h.PayloadBytes > 1<<20 {
			return
		}
		binary.LittleEndian.PutUint64(slot[offSum:], PayloadSum(slot[HeaderBytes:HeaderBytes+h.Stored()]))
		PutSum(slot[:HeaderBytes])
		want := Want{
			Store: h.Store, SegmentID: h.SegmentID, Slot: h.Slot, Seq: h.Seq, PayloadBytes: int(h.PayloadBytes),
			ID: store.RecordID{Namespace: h.Namespace, Shard: h.Shard, Key: h.Key},
		}
		for _, o := range []Opener{{}, {Codec: c}, {Ring: ring, Codec: c}, {SumsOnly: true}} {
			_, _ = open(slot, &o, &want)
		}
	})
}
