package residency_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/store/residency"
)

// raw is a frame of these values, whatever they are.
func raw(values ...any) []byte {
	b := msgp.AppendArrayHeader(make([]byte, 4), uint32(len(values)))
	for _, v := range values {
		var err error
		if b, err = msgp.AppendIntf(b, v); err != nil {
			panic(err)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func TestBrokenStreamsAreTold(t *testing.T) {
	hello, end := raw(1, 1, 7, false), raw(4, 5, 0)
	record := append([]byte{1}, make([]byte, 38)...)
	odd := append([]byte{9}, make([]byte, 38)...)
	for name, c := range map[string]struct {
		frames [][]byte
		want   error
	}{
		"a gap":                         {[][]byte{hello, end, raw(3, 7, record)}, residency.ErrGap},
		"a gap in silence":              {[][]byte{hello, end, raw(5, 8)}, residency.ErrGap},
		"a snapshot that lacks records": {[][]byte{hello, raw(3, 0, record), raw(4, 9, 2)}, residency.ErrGap},
		"a snapshot again":              {[][]byte{hello, end, raw(3, 0, record)}, residency.ErrMalformed},
		"events in a snapshot":          {[][]byte{hello, raw(3, 1, record)}, residency.ErrMalformed},
		"half a record":                 {[][]byte{hello, end, raw(3, 6, record[:5])}, residency.ErrMalformed},
		"a record of no kind":           {[][]byte{hello, end, raw(3, 6, odd)}, residency.ErrMalformed},
		"a frame of 4 GiB":              {[][]byte{hello, end, {0xff, 0xff, 0xff, 0xff}}, residency.ErrMalformed},
		"no msgpack":                    {[][]byte{hello, end, {1, 0, 0, 0, 0xc1}}, residency.ErrMalformed},
		"too few values":                {[][]byte{hello, raw(3, 0)}, residency.ErrMalformed},
		"another hello":                 {[][]byte{hello, end, hello}, residency.ErrMalformed},
		"no hello":                      {[][]byte{raw(5, 0)}, residency.ErrMalformed},
		"another version":               {[][]byte{raw(1, 2, 1, false)}, residency.ErrMalformed},
		"two ends of the snapshot":      {[][]byte{hello, end, end}, residency.ErrMalformed},
		"a namespace number too high":   {[][]byte{hello, raw(2, 1<<16, make([]byte, 32), []byte{})}, residency.ErrMalformed},
		"a digest of 31 bytes":          {[][]byte{hello, raw(2, 0, make([]byte, 31), []byte{})}, residency.ErrMalformed},
		"an adapter of no namespace":    {[][]byte{hello, end, raw(7, 1<<16, "a", "b")}, residency.ErrMalformed},
		"an adapter's name too long":    {[][]byte{hello, end, raw(7, 0, strings.Repeat("a", 513), "b")}, residency.ErrMalformed},
		"an adapter's scope too long":   {[][]byte{hello, end, raw(7, 0, "a", strings.Repeat("b", 4097))}, residency.ErrMalformed},
		"the end":                       {[][]byte{hello, raw(6, "error", "why")}, residency.ErrEnded},
	} {
		_, err := read(residency.NewReader(bytes.NewReader(slices.Concat(c.frames...)), residency.Position{}))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A later version may say more than this one understands.
func TestFramesOfUnknownTypesAreSkipped(t *testing.T) {
	stream := slices.Concat(raw(1, 1, 7, false), raw(77, "news"), raw(4, 5, 0))
	r := residency.NewReader(bytes.NewReader(stream), residency.Position{})
	if frames, _ := read(r); len(frames) != 3 || r.Position().Seq != 5 {
		t.Errorf("%+v at %+v", frames, r.Position())
	}
}

func FuzzReader(f *testing.F) {
	f.Add(written(f, small))
	f.Add(slices.Concat(raw(1, 1, 7, true), raw(5, 43)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := residency.NewReader(bytes.NewReader(b), residency.Position{Epoch: 7, Seq: 43})
		if _, err := read(r); err == nil {
			t.Fatal("a stream without an end")
		}
	})
}
