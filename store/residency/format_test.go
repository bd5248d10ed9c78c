package residency_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/store/residency"
)

func key(n byte) (k connector.Key) {
	k[0], k[15] = n, n
	return k
}

var digest = connector.NamespaceDigest{0: 0xd1, 31: 0xd2}

// written is what f writes.
func written(t testing.TB, f func(*residency.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	w := residency.NewWriter(&b)
	if err := errors.Join(f(w), w.Flush()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// small is a stream with a frame of each type.
func small(w *residency.Writer) error {
	return errors.Join(
		w.Hello(residency.Hello{Epoch: 7}),
		w.Namespace(residency.Namespace{Number: 300, Digest: digest, Manifest: []byte(`{"m":1}`)}),
		w.Record(0, residency.Record{Shard: 0x0102, Namespace: 300, Key: key(1), Parent: key(9)}),
		w.SnapshotEnd(41),
		w.Record(42, residency.Record{Shard: 2, Namespace: 300, Key: key(2), Parent: key(1)}),
		w.Record(43, residency.Record{Removed: true, Shard: 3, Namespace: 300, Key: key(1)}),
		w.Heartbeat(43),
		w.End("lagged", "too slow"),
	)
}

// The format, byte for byte: routers and daemons of different releases speak it.
func TestTheFormatStaysAsItIs(t *testing.T) {
	const (
		zeros14 = "0000000000000000000000000000"
		zeros30 = zeros14 + "00" + "00" + zeros14
		key1    = "01" + zeros14 + "01"
		key2    = "02" + zeros14 + "02"
		key9    = "09" + zeros14 + "09"
	)
	want := "05000000" + "94" + "01" + "01" + "07" + "c2" +
		"30000000" + "94" + "02" + "cd012c" + "c420" + "d1" + zeros30 + "d2" + "c407" + hex.EncodeToString([]byte(`{"m":1}`)) +
		"2c000000" + "93" + "03" + "00" + "c427" + "01" + "0201" + "2c010000" + key1 + key9 +
		"04000000" + "93" + "04" + "29" + "01" +
		"53000000" + "93" + "03" + "2a" + "c44e" + "01" + "0200" + "2c010000" + key2 + key1 +
		"02" + "0300" + "2c010000" + key1 + "00" + zeros14 + "00" +
		"03000000" + "92" + "05" + "2b" +
		"12000000" + "93" + "06" + "a6" + hex.EncodeToString([]byte("lagged")) + "a8" + hex.EncodeToString([]byte("too slow"))
	if got := hex.EncodeToString(written(t, small)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTheSizeOfARecord(t *testing.T) {
	of := func(records int) int {
		return len(written(t, func(w *residency.Writer) (err error) {
			for i := range records {
				err = errors.Join(err, w.Record(uint64(i+1), residency.Record{}))
			}
			return err
		}))
	}
	docs.Says(t, "adr/0007-router-feeds.md", fmt.Sprintf("packed records of %d bytes", of(2)-of(1)))
}

// Streams of daemons tell of adapters as well.
func TestTheFormatOfAnAdapterStaysAsItIs(t *testing.T) {
	a := residency.Adapter{Namespace: 300, Name: "tuned", Scope: "lora-1:0a"}
	stream := written(t, func(w *residency.Writer) error {
		return errors.Join(w.Hello(residency.Hello{Epoch: 7}), w.SnapshotEnd(0), w.Adapter(a))
	})
	want := "15000000" + "94" + "07" + "cd012c" + "a5" + hex.EncodeToString([]byte("tuned")) + "a9" + hex.EncodeToString([]byte("lora-1:0a"))
	if got := hex.EncodeToString(stream); !strings.HasSuffix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	frames, err := read(residency.NewReader(bytes.NewReader(stream), residency.Position{}))
	if !errors.Is(err, io.EOF) || len(frames) != 3 || frames[2] != a {
		t.Errorf("%+v, %v", frames, err)
	}
}

// read returns the frames of a stream, records one by one, nil for a heartbeat, and what ended it.
func read(r *residency.Reader) (frames []any, err error) {
	for {
		frame, err := r.Next()
		switch f := frame.(type) {
		case nil:
			if err != nil {
				return frames, err
			}
			frames = append(frames, nil)
		case residency.Records:
			for i := range f.Len() {
				frames = append(frames, f.At(i))
			}
		case residency.Namespace:
			f.Manifest = bytes.Clone(f.Manifest)
			frames = append(frames, f)
		default:
			frames = append(frames, f)
		}
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	r := residency.NewReader(bytes.NewReader(written(t, small)), residency.Position{})
	got, err := read(r)
	want := []any{
		residency.Hello{Epoch: 7},
		residency.Namespace{Number: 300, Digest: digest, Manifest: []byte(`{"m":1}`)},
		residency.Record{Shard: 0x0102, Namespace: 300, Key: key(1), Parent: key(9)},
		residency.SnapshotEnd{},
		residency.Record{Shard: 2, Namespace: 300, Key: key(2), Parent: key(1)},
		residency.Record{Removed: true, Shard: 3, Namespace: 300, Key: key(1)},
		nil,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !errors.Is(err, residency.ErrEnded) || r.Position() != (residency.Position{Epoch: 7, Seq: 43}) {
		t.Errorf("ended at %+v by %v", r.Position(), err)
	}
}

// Records are spread over frames, and come out as they went in.
func TestManyRecordsAreManyFrames(t *testing.T) {
	const n = 3000
	stream := written(t, func(w *residency.Writer) error {
		err := w.Hello(residency.Hello{Epoch: 1})
		for i := range n {
			err = errors.Join(err, w.Record(0, residency.Record{Shard: connector.Shard(i)}))
		}
		err = errors.Join(err, w.SnapshotEnd(10))
		for i := range n {
			err = errors.Join(err, w.Record(uint64(11+i), residency.Record{Shard: connector.Shard(i), Removed: i%2 == 0}))
		}
		return err
	})
	r := residency.NewReader(bytes.NewReader(stream), residency.Position{})
	got, err := read(r)
	if !errors.Is(err, io.EOF) || len(got) != 2*n+2 || r.Position().Seq != 10+n {
		t.Fatalf("%d frames and records, at %+v: %v", len(got), r.Position(), err)
	}
	for i := range n {
		for _, g := range []struct{ got, want any }{
			{got[1+i], residency.Record{Shard: connector.Shard(i)}},
			{got[2+n+i], residency.Record{Shard: connector.Shard(i), Removed: i%2 == 0}},
		} {
			if g.got != g.want {
				t.Fatalf("record %d: %+v, want %+v", i, g.got, g.want)
			}
		}
	}
}

// A stream resumes where the reader asked for it, and nowhere else.
func TestAStreamResumesAtItsReadersPosition(t *testing.T) {
	at := residency.Position{Epoch: 7, Seq: 43}
	resumed := func(epoch, seq uint64) []byte {
		return written(t, func(w *residency.Writer) error {
			return errors.Join(w.Hello(residency.Hello{Epoch: epoch, Resumed: true}), w.Record(seq, residency.Record{}))
		})
	}
	for name, c := range map[string]struct {
		from   residency.Position
		stream []byte
		want   error
	}{
		"where it was":     {at, resumed(7, 44), io.EOF},
		"further on":       {at, resumed(7, 45), residency.ErrGap},
		"further back":     {at, resumed(7, 43), residency.ErrGap},
		"another epoch":    {at, resumed(8, 44), residency.ErrMalformed},
		"unasked":          {residency.Position{}, resumed(7, 44), residency.ErrMalformed},
		"unasked, epoch 0": {residency.Position{}, resumed(0, 1), residency.ErrMalformed},
	} {
		if _, err := read(residency.NewReader(bytes.NewReader(c.stream), c.from)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, ok := residency.ParsePosition(at.Query()); !ok || got != at {
		t.Errorf("%+v %v", got, ok)
	}
	// Readers of earlier releases would mix up the numbers of namespaces.
	old := at.Query()
	old.Del("numbers")
	for _, q := range []url.Values{nil, old} {
		if _, ok := residency.ParsePosition(q); ok {
			t.Errorf("%v names a position", q)
		}
	}
}

// Cut short, a stream brings its first frames and an error.
func TestAnyPartOfAStreamIsReadUpToItsEnd(t *testing.T) {
	stream := written(t, small)
	all, _ := read(residency.NewReader(bytes.NewReader(stream), residency.Position{}))
	for n := range stream {
		got, err := read(residency.NewReader(bytes.NewReader(stream[:n]), residency.Position{}))
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		if len(got) > len(all) || len(got) > 0 && !reflect.DeepEqual(got, all[:len(got)]) {
			t.Fatalf("cut to %d bytes: %+v", n, got)
		}
	}
}
