package format

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/internal/testkit/property"
)

// restamp makes the checksum of a JSON file right again, after text in it was replaced.
func restamp(b []byte, old, with string) []byte {
	b = bytes.Replace(bytes.Clone(b), []byte(old), []byte(with), 1)
	at := bytes.LastIndex(b, []byte(sumField))
	if at < 0 {
		return b
	}
	return fmt.Appendf(b[:at:at], "%s: %q\n}\n", sumField, sumText(b[:at]))
}

// small is a small file, and how it is decoded.
type small struct {
	encode func() ([]byte, error)
	decode func(b []byte) (any, error)
}

func sampleHead() Head {
	return Head{
		Bucket: BucketID{1, 2}, Generation: 1<<63 + 1, Last: 300, IntervalMS: 2000,
		Parts: []Part{
			{PartName(1, 200, ObjectID{7}), 5000, Sum{8}, 200},
			{PartName(201, 300, ObjectID{8}), MaxPartBytes, Sum{9}, 3_000_000},
		},
	}
}

// smalls are the small files, by the name of a case.
func smalls(t testing.TB) map[string]small {
	bucket := BucketID{1, 2}
	decodeHead := func(b []byte) (any, error) { return DecodeHead(b, bucket) }
	decodeNote := func(b []byte) (any, error) { return DecodeNote(b) }
	return map[string]small{
		"format":        {NewNote(bucket, 1_800_000_000, nil).Encode, decodeNote},
		"format.sealed": {NewNote(bucket, 1_800_000_000, testRing(t, 1)).Encode, decodeNote},
		"head":          {sampleHead().Encode, decodeHead},
		"head.empty":    {Head{Bucket: bucket}.Encode, decodeHead},
		"lease":         {Lease{Node: `a "node"`, Writer: WriterID{1, 2}}.Encode, func(b []byte) (any, error) { return DecodeLease(b) }},
	}
}

func mustEncode(t testing.TB, s small) []byte {
	t.Helper()
	b, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSmallFilesRoundTrip(t *testing.T) {
	ring := testRing(t, 1)
	if n, err := DecodeNote(mustEncode(t, smalls(t)["format.sealed"])); err != nil || n.Created != 1_800_000_000 || n.Bucket != (BucketID{1, 2}) {
		t.Errorf("%+v, %v", n, err)
	} else if id, sealed := n.Key(); !sealed || id != ring.KeyID() {
		t.Errorf("sealed with %x, %v", id, sealed)
	}
	if n, err := DecodeNote(mustEncode(t, smalls(t)["format"])); err != nil {
		t.Error(err)
	} else if _, sealed := n.Key(); sealed {
		t.Error("sealed, and made without a key")
	}
	want := sampleHead()
	h, err := DecodeHead(mustEncode(t, smalls(t)["head"]), want.Bucket)
	if want.Sum = h.Sum; err != nil || !reflect.DeepEqual(h, want) {
		t.Errorf("%+v, %v, want %+v", h, err, want)
	}
	l, err := DecodeLease(mustEncode(t, smalls(t)["lease"]))
	if err != nil || l.Node != `a "node"` || l.Writer != (WriterID{1, 2}) {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestLeasesRoundTrip(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		want := Lease{Node: rapid.StringN(0, 60, maxNodeBytes).Draw(t, "node"), Writer: drawWriter(t)}
		b, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeLease(b)
		if want.Sum = got.Sum; err != nil || got != want {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	})
}

// White space after the last field is not covered, and changes nothing.
func TestEveryFlippedBitOfASmallFileIsFound(t *testing.T) {
	for name, s := range smalls(t) {
		whole := mustEncode(t, s)
		want, err := s.decode(whole)
		if err != nil {
			t.Fatal(name, err)
		}
		for bit := range 8 * len(whole) {
			b := bytes.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			if got, err := s.decode(b); err == nil && !reflect.DeepEqual(got, want) || err != nil && !errors.Is(err, ErrBad) {
				t.Fatalf("%s, bit %d: %+v, %v", name, bit, got, err)
			}
		}
		for n := range len(whole) - 2 {
			if _, err := s.decode(whole[:n]); !errors.Is(err, ErrBad) {
				t.Fatalf("%s, %d bytes of %d: %v", name, n, len(whole), err)
			}
		}
	}
}

func TestSmallFilesWithRightChecksums(t *testing.T) {
	for _, c := range []struct {
		file, old, with string
		want            error // nil: it is accepted
	}{
		{"format", `"format": 1`, `"format": 2`, ErrNewer},
		{"format", `"format": 1,`, `"format": 2, "bucket_id": ["of another form"],`, ErrNewer},
		{"format", `"format": 1`, `"format": 0`, ErrBad},
		{"format", `"format": 1`, `"format": -1`, ErrBad},
		{"format", `"format": 1`, `"format": "1"`, ErrBad},
		{"format", `"format": 1`, `"format": 1e99`, ErrBad},
		{"format", `"none"`, `"some"`, ErrBad},
		{"format", `"none"`, `"0123456789"`, ErrBad},
		{"format", `"bucket_id": "0102`, `"bucket_id": "010`, ErrBad},
		{"format", `"bucket_id": "0102`, `"bucket_id": "010G`, ErrBad},
		{"format", `"bucket_id"`, `"other_id"`, ErrBad},
		{"format", `{`, `{"later": {"a": [1]},`, nil},
		{"format", `{`, `[`, ErrBad},
		{"format", `{`, `{"later": "` + strings.Repeat("a", maxSmallBytes) + `",`, ErrTooLarge},
		{"head", `"needs": 0`, `"needs": 1`, ErrNewer},
		{"head", `"needs": 0,`, `"needs": 1, "last": "of another form",`, ErrNewer},
		{"head", `"bucket_id": "01`, `"bucket_id": "02`, ErrForeign},
		{"head", `"bytes": 5000`, `"bytes": -1`, ErrBad},
		{"head", `"bytes": 5000`, `"bytes": 1099511627776`, ErrBad},
		{"head", `"records": 200`, `"records": 5000000`, ErrBad},
		{"head", `"last": 300`, `"last": 299`, ErrBad},
		{"head", "kv1/part/", "kv1/parts/", ErrBad},
		{"head", `"kv1/part/0000000000000001-00000000000000c8-07000000000000000000000000000000"`, `"kv1/head"`, ErrBad},
		{"head", `"last": 300`, `"last": 301`, nil},
		{"head", `{`, strings.Repeat("[", maxHeadBytes/2), ErrBad},
		{"head", `{`, strings.Repeat(" ", maxHeadBytes) + `{`, ErrTooLarge},
		{"lease", `a \"node\"`, strings.Repeat("a", maxNodeBytes+1), ErrBad},
		{"lease", `a \"node\"`, strings.Repeat("a", maxNodeBytes), nil},
		{"lease", `"0102`, `"01`, ErrBad},
	} {
		s := smalls(t)[c.file]
		b := restamp(mustEncode(t, s), c.old, c.with)
		if _, err := s.decode(b); !errors.Is(err, c.want) || c.want == ErrNewer && Damaged(err) {
			t.Errorf("%s with %.60s: %v, want %v", c.file, c.with, err, c.want)
		}
	}
}

func TestSmallFilesThatCannotBeEncoded(t *testing.T) {
	long, log := sampleHead(), sampleHead()
	long.Parts = make([]Part, maxParts+1)
	log.Parts[0].Name = LogName(1)
	for name, encode := range map[string]func() ([]byte, error){
		"many parts": long.Encode,
		"no part":    log.Encode,
		"long name":  Lease{Node: strings.Repeat("a", maxNodeBytes+1)}.Encode,
	} {
		if b, err := encode(); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	most := sampleHead()
	for len(most.Parts) < maxParts {
		most.Parts = append(most.Parts, most.Parts[0])
	}
	if b, err := most.Encode(); err != nil || int64(len(b)) > MostBytes(KindHead) {
		t.Errorf("%d parts: %d bytes, %v", len(most.Parts), len(b), err)
	}
}

func TestIntervalsAreBounded(t *testing.T) {
	for ms, want := range map[uint32]time.Duration{0: MinInterval, 1: MinInterval, 2500: 2500 * time.Millisecond, 1<<32 - 1: MaxInterval} {
		if got := (&Head{IntervalMS: ms}).Interval(); got != want {
			t.Errorf("%d ms is %v, want %v", ms, got, want)
		}
	}
}

func FuzzDecodeSmall(f *testing.F) {
	order := []string{"format", "format.sealed", "head", "head.empty", "lease"}
	files := smalls(f)
	for i, name := range order {
		f.Add(uint8(i), mustEncode(f, files[name]))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		s := files[order[int(kind)%len(order)]]
		_, _ = s.decode(b)
		v, err := s.decode(restamp(b, "\x00", "\x00"))
		if err != nil {
			return
		}
		var again []byte
		switch v := v.(type) {
		case Note:
			again, err = v.Encode()
		case Head:
			again, err = v.Encode()
		case Lease:
			again, err = v.Encode()
		}
		if err != nil {
			if !errors.Is(err, ErrTooLarge) { // indented, it may be longer
				t.Fatal(err)
			}
			return
		}
		if _, err := s.decode(again); err != nil {
			t.Errorf("%s\n%v", again, err)
		}
	})
}
