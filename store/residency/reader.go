package residency

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// Reader reads a stream and checks that it is complete. It is for one goroutine.
type Reader struct {
	r    *bufio.Reader
	body []byte
	// at is where the stream was to be resumed, and where it is since its Hello.
	at      Position
	begun   bool
	loading bool   // a snapshot is being read
	count   uint64 // of its records
}

// NewReader reads the stream that r brings in answer to a request for what follows from.
func NewReader(r io.Reader, from Position) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), at: from}
}

// Position is where the stream is, from its Hello on; Seq is 0 during the snapshot.
func (r *Reader) Position() Position { return r.at }

// Next reads a frame: a [Hello], [Namespace], [Records], [SnapshotEnd] or [Adapter], or nil for a heartbeat or a frame of
// an unknown type. It fails with [ErrMalformed], [ErrGap] and [ErrEnded], and with the connection's errors.
func (r *Reader) Next() (frame any, err error) {
	body, err := r.read()
	if err != nil {
		return nil, err
	}
	_, rest, err := msgp.ReadArrayHeaderBytes(body)
	v := values{b: rest, err: err}
	kind := v.number()
	if v.err == nil && r.begun == (kind == typeHello) {
		return nil, fmt.Errorf("%w: type %d in the wrong place", ErrMalformed, kind)
	}
	r.begun = true
	switch kind {
	case typeHello:
		frame, err = r.hello(&v)
	case typeNamespace:
		frame, err = namespace(&v)
	case typeRecords:
		frame, err = r.records(&v)
	case typeSnapshotEnd:
		frame, err = r.snapshotEnd(&v)
	case typeAdapter:
		frame, err = adapter(&v)
	case typeHeartbeat:
		if seq := v.number(); seq != r.at.Seq {
			err = fmt.Errorf("%w: the last event was %d, %d were seen", ErrGap, seq, r.at.Seq)
		}
	case typeEnd:
		err = fmt.Errorf("%w: %s: %s", ErrEnded, v.text(), v.text())
	}
	if v.err != nil {
		return nil, fmt.Errorf("%w: type %d: %w", ErrMalformed, kind, v.err)
	}
	return frame, err
}

// read returns the next frame's body, valid until the next call.
func (r *Reader) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrameBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, n, maxFrameBytes)
	}
	if uint32(cap(r.body)) < n {
		r.body = make([]byte, n)
	}
	r.body = r.body[:n]
	_, err := io.ReadFull(r.r, r.body)
	return r.body, err
}

func (r *Reader) hello(v *values) (any, error) {
	spoken, h := v.number(), Hello{Epoch: v.number(), Resumed: v.flag()}
	switch {
	case v.err != nil:
		return nil, nil
	case spoken != version:
		return nil, fmt.Errorf("%w: version %d, want %d", ErrMalformed, spoken, version)
	case h.Resumed && (r.at.Epoch == 0 || h.Epoch != r.at.Epoch):
		return nil, fmt.Errorf("%w: a stream that resumes what never began", ErrMalformed)
	case !h.Resumed:
		r.at, r.loading = Position{Epoch: h.Epoch}, true
	}
	return h, nil
}

func namespace(v *values) (any, error) {
	number, digest, manifest := v.number(), v.bytes(), v.bytes()
	n := Namespace{Number: uint32(number), Manifest: manifest}
	if v.err == nil && (number >= MaxNamespaces || len(digest) != len(n.Digest)) {
		return nil, fmt.Errorf("%w: namespace %d with a digest of %d bytes", ErrMalformed, number, len(digest))
	}
	copy(n.Digest[:], digest)
	return n, nil
}

func adapter(v *values) (any, error) {
	number, a := v.number(), Adapter{Name: v.text(), Scope: v.text()}
	if v.err == nil && (number >= MaxNamespaces || len(a.Name) > connector.MaxIDBytes || len(a.Scope) > connector.MaxScopeBytes) {
		return nil, fmt.Errorf("%w: an adapter of namespace %d, with a name of %d bytes and a scope of %d", ErrMalformed, number, len(a.Name), len(a.Scope))
	}
	a.Namespace = uint32(number)
	return a, nil
}

func (r *Reader) records(v *values) (any, error) {
	first, records := v.number(), Records{packed: v.bytes()}
	switch {
	case v.err != nil:
		return nil, nil
	case len(records.packed)%recordBytes != 0 || r.loading != (first == 0):
		return nil, fmt.Errorf("%w: %d bytes of records from number %d", ErrMalformed, len(records.packed), first)
	case first > 0 && first != r.at.Seq+1:
		return nil, fmt.Errorf("%w: %d follows %d", ErrGap, first, r.at.Seq)
	}
	for i := 0; i < len(records.packed); i += recordBytes {
		if kind := records.packed[i]; kind != recordStored && kind != recordRemoved {
			return nil, fmt.Errorf("%w: a record of kind %d", ErrMalformed, kind)
		}
	}
	if n := uint64(records.Len()); r.loading {
		r.count += n
	} else {
		r.at.Seq += n
	}
	return records, nil
}

func (r *Reader) snapshotEnd(v *values) (any, error) {
	seq, count := v.number(), v.number()
	switch {
	case v.err != nil:
		return nil, nil
	case !r.loading:
		return nil, fmt.Errorf("%w: the end of no snapshot", ErrMalformed)
	case count != r.count:
		return nil, fmt.Errorf("%w: a snapshot of %d records, %d were seen", ErrGap, count, r.count)
	}
	r.at.Seq, r.loading = seq, false
	return SnapshotEnd{}, nil
}

// values reads the values of a frame one by one; the first error stays.
type values struct {
	b   []byte
	err error
}

func (v *values) number() (n uint64) {
	if v.err == nil {
		n, v.b, v.err = msgp.ReadUint64Bytes(v.b)
	}
	return n
}

func (v *values) flag() (f bool) {
	if v.err == nil {
		f, v.b, v.err = msgp.ReadBoolBytes(v.b)
	}
	return f
}

func (v *values) bytes() (p []byte) {
	if v.err == nil {
		p, v.b, v.err = msgp.ReadBytesZC(v.b)
	}
	return p
}

func (v *values) text() (s string) {
	if v.err == nil {
		s, v.b, v.err = msgp.ReadStringBytes(v.b)
	}
	return s
}
