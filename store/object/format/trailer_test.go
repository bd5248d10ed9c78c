package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/seal"
)

// drawWhole draws an object and its slots.
func drawWhole(t *rapid.T) (Object, []byte) {
	o := drawObject(t)
	end := int64(o.Bytes) - TrailerBytes - o.footerBytes()
	o.Bytes = 0
	return o, make([]byte, end)
}

// tail decodes the end of a data object as a program does that knows its name and size alone.
func tail(b []byte, id ObjectID, bucket BucketID, ring *seal.Ring) (*Object, error) {
	t, err := DecodeTrailer(b[max(len(b)-TrailerBytes, 0):], id, int64(len(b)))
	if err != nil {
		return nil, err
	}
	return t.DecodeFooter(bytes.Clone(b[t.FooterOffset:][:t.FooterBytes]), bucket, ring)
}

func TestTailsRoundTrip(t *testing.T) {
	sealing, bucket := testRing(t, 1), BucketID{3}
	property.Check(t, func(t *rapid.T) {
		o, slots := drawWhole(t)
		var ring *seal.Ring
		if rapid.Bool().Draw(t, "sealed") {
			ring = sealing
		}
		b, err := o.AppendTail(slots, bucket, ring)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tail(b, o.ID, bucket, ring)
		if err != nil || !reflect.DeepEqual(*got, o) || int(got.Bytes) != len(b) {
			t.Fatalf("%v\n%+v\n%+v", err, got, o)
		}
		// The slots are all of the object up to the footer, one after another.
		var at int64
		for i := range got.Records {
			from, n := got.Slot(i)
			next := int64(len(slots))
			if i+1 < len(got.Records) {
				next, _ = got.Slot(i + 1)
			}
			if from < at || n < minSlotUnits*Unit || from+n > next {
				t.Fatalf("slot %d: %d bytes at %d of %d", i, n, from, len(slots))
			}
			at = from + n
		}
	})
}

func TestEveryFlippedBitOfATailIsFound(t *testing.T) {
	bucket := BucketID{3}
	for _, ring := range []*seal.Ring{nil, testRing(t, 1)} {
		o := sample(KindData).Objects[0]
		end := int64(o.Bytes) - TrailerBytes - o.footerBytes()
		b, err := o.AppendTail(make([]byte, end), bucket, ring)
		if err != nil {
			t.Fatal(err)
		}
		for bit := 8 * int(end); bit < 8*len(b); bit++ {
			b[bit/8] ^= 1 << (bit % 8)
			if _, err := tail(b, o.ID, bucket, ring); !errors.Is(err, ErrBad) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		if _, err := tail(b, ObjectID{9}, bucket, ring); !errors.Is(err, ErrBad) {
			t.Errorf("another object: %v", err)
		}
		if _, err := tail(b[Unit:], o.ID, bucket, ring); !errors.Is(err, ErrBad) {
			t.Errorf("without its beginning: %v", err)
		}
		if _, err := tail(b[:len(b)-1], o.ID, bucket, ring); !errors.Is(err, ErrBad) {
			t.Errorf("cut: %v", err)
		}
	}
}

func TestHostileTrailers(t *testing.T) {
	o := sample(KindData).Objects[0]
	end := int64(o.Bytes) - TrailerBytes - o.footerBytes()
	whole, err := o.AppendTail(make([]byte, end), BucketID{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := len(whole) - TrailerBytes
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		change func(b []byte)
		want   error
	}{
		"newer":              {func(b []byte) { b[offTrailerVersion]++ }, ErrNewer},
		"version 0":          {func(b []byte) { b[offTrailerVersion] = 0 }, ErrBad},
		"footer far away":    {func(b []byte) { le.PutUint64(b[offTrailerFooter:], 1<<63) }, ErrBad},
		"footer at 0":        {func(b []byte) { le.PutUint64(b[offTrailerFooter:], 0) }, ErrBad},
		"footer of 4 GiB":    {func(b []byte) { le.PutUint32(b[offTrailerBytes:], 1<<32-1) }, ErrTooLarge},
		"footer of nothing":  {func(b []byte) { le.PutUint32(b[offTrailerBytes:], 0) }, ErrBad},
		"4 billion records":  {func(b []byte) { le.PutUint32(b[offTrailerRecords:], 1<<32-1) }, ErrTooLarge},
		"a record more":      {func(b []byte) { b[offTrailerRecords]++ }, ErrBad},
		"of another object":  {func(b []byte) { b[offTrailerObject]++ }, ErrBad},
		"for another footer": {func(b []byte) { b[offTrailerFooterSum]++ }, ErrBad},
	} {
		b := bytes.Clone(whole)
		c.change(b[at:])
		le.PutUint64(b[at+offTrailerSum:], xxh3.Hash(b[at:at+offTrailerSum]))
		if got, err := tail(b, o.ID, BucketID{}, nil); !errors.Is(err, c.want) || got != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int64{-1, 0, 63, 1 << 40} {
		if _, err := DecodeTrailer(whole[at:], o.ID, size); err == nil {
			t.Errorf("accepted in an object of %d bytes", size)
		}
	}
}

func TestSlotsThatAreNotTheObjects(t *testing.T) {
	for name, slots := range map[string]int{"none": 0, "not whole": 3*Unit + 1, "too few": 2 * Unit, "too many": MaxSlotsBytes + Unit} {
		o := Object{PayloadBytes: 100, Runs: make([]Run, 1), Records: []Record{{}, {Start: 2}}}
		if b, err := o.AppendTail(make([]byte, slots), BucketID{}, nil); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The largest payload makes an object that can be listed, and so do as many small ones as there can be.
func TestTheLargestObjects(t *testing.T) {
	one := Object{PayloadBytes: store.MaxPayloadBytes, Runs: make([]Run, 1), Records: make([]Record, 1)}
	most := Object{PayloadBytes: 1, Runs: make([]Run, MaxObjectRecords), Records: make([]Record, MaxObjectRecords)}
	for i := range most.Records {
		most.Runs[i].First, most.Records[i].Start = uint16(i), uint16(minSlotUnits*i)
	}
	for _, o := range []*Object{&one, &most} {
		slots := int64(len(o.Records)) * SlotBytes(int(o.PayloadBytes))
		b, err := o.AppendTail(make([]byte, slots), BucketID{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tail(b, o.ID, BucketID{}, nil)
		if err != nil || len(got.Records) != len(o.Records) || int64(len(b)) > MostBytes(KindData) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

func TestSlotBytes(t *testing.T) {
	for stored, want := range map[int]int64{1: 8192, 4096: 8192, 4097: 12288, 2 << 20: 2<<20 + 4096, store.MaxPayloadBytes: MaxSlotsBytes} {
		if got := SlotBytes(stored); got != want {
			t.Errorf("%d bytes lie in %d, want %d", stored, got, want)
		}
	}
}

func TestParents(t *testing.T) {
	o := Object{
		Runs:    []Run{{Parent: connector.Key{1}}, {First: 2, Parent: connector.Key{2}}},
		Records: []Record{{Key: connector.Key{10}}, {Key: connector.Key{11}}, {Key: connector.Key{12}}, {Key: connector.Key{13}}},
	}
	for i, want := range []byte{1, 10, 2, 12} {
		if got := o.Parent(i); got != (connector.Key{want}) {
			t.Errorf("parent of record %d is %s", i, got)
		}
	}
}

func FuzzDecodeTrailer(f *testing.F) {
	o := sample(KindData).Objects[0]
	slots := int64(o.Bytes) - TrailerBytes - o.footerBytes()
	b, err := o.AppendTail(make([]byte, slots), BucketID{}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[len(b)-TrailerBytes:], int64(len(b)))
	f.Fuzz(func(t *testing.T, b []byte, objectBytes int64) {
		if len(b) < TrailerBytes {
			_, _ = DecodeTrailer(b, ObjectID{}, objectBytes)
			return
		}
		b = bytes.Clone(b[:TrailerBytes])
		id := ObjectID(b[offTrailerObject:])
		binary.LittleEndian.PutUint64(b[offTrailerSum:], xxh3.Hash(b[:offTrailerSum]))
		tr, err := DecodeTrailer(b, id, objectBytes)
		if err != nil {
			return
		}
		if tr.FooterOffset < 0 || tr.FooterOffset+int64(tr.FooterBytes)+TrailerBytes != objectBytes || objectBytes > MaxObjectBytes {
			t.Errorf("%+v in %d bytes", tr, objectBytes)
		}
		if again, err := DecodeTrailer(tr.append(nil), id, objectBytes); err != nil || again != tr {
			t.Errorf("%+v became %+v, %v", tr, again, err)
		}
	})
}
