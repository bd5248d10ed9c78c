package feed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// The residency stream; package daemon, which serves it, describes it.
const (
	residencyVersion     = 1
	residencyHello       = 1
	residencyNamespace   = 2
	residencyRecords     = 3
	residencySnapshotEnd = 4
	residencyHeartbeat   = 5
	residencyEnd         = 6

	residencyRecordBytes = 39
	residencyStored      = 1
	residencyRemoved     = 2

	// maxResidencyFrame bounds a frame: 1,024 records, or a manifest.
	maxResidencyFrame = 128 << 10
	// maxNamespaces bounds those of one store.
	maxNamespaces = 1 << 16
)

var (
	errResidencyFrame = errors.New("malformed frame in a residency stream")
	errResidencyGap   = errors.New("events are missing in a residency stream")
	errResidencyEnd   = errors.New("the store has ended the residency stream")
)

// frameReader reads frames: a length, u32 little endian, and a body.
type frameReader struct {
	r    *bufio.Reader
	body []byte
}

// next returns the next frame's body, valid until the next call.
func (d *frameReader) next() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxResidencyFrame {
		return nil, fmt.Errorf("%w: %d bytes, allowed are %d", errResidencyFrame, n, maxResidencyFrame)
	}
	if uint32(cap(d.body)) < n {
		d.body = make([]byte, n)
	}
	d.body = d.body[:n]
	_, err := io.ReadFull(d.r, d.body)
	return d.body, err
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

// frame applies a frame.
func (f *Residency) frame(body []byte, first bool) error {
	f.mu.Lock()
	defer f.unlock()
	_, rest, err := msgp.ReadArrayHeaderBytes(body)
	v := values{b: rest, err: err}
	kind := v.number()
	if v.err == nil && first != (kind == residencyHello) {
		return fmt.Errorf("%w: type %d in the wrong place", errResidencyFrame, kind)
	}
	switch kind {
	case residencyHello:
		err = f.hello(&v)
	case residencyNamespace:
		err = f.namespace(&v)
	case residencyRecords:
		err = f.records(&v)
	case residencySnapshotEnd:
		err = f.snapshotEnd(&v)
	case residencyHeartbeat:
		if seq := v.number(); v.err == nil && seq != f.stats.LastSeq {
			err = fmt.Errorf("%w: %d are said, %d were seen", errResidencyGap, seq, f.stats.LastSeq)
		}
	case residencyEnd:
		err = fmt.Errorf("%w: %s: %s", errResidencyEnd, v.text(), v.text())
	}
	if v.err != nil {
		return fmt.Errorf("%w: type %d: %w", errResidencyFrame, kind, v.err)
	}
	return err
}

func (f *Residency) hello(v *values) error {
	version, epoch, resumed := v.number(), v.number(), v.flag()
	switch {
	case v.err != nil:
		return nil
	case version != residencyVersion:
		return fmt.Errorf("%w: version %d, spoken is %d", errResidencyFrame, version, residencyVersion)
	case resumed && (f.views == nil || epoch != f.stats.Epoch || f.loading):
		return fmt.Errorf("%w: a stream that resumes what was never begun", errResidencyFrame)
	}
	f.stats.Connects++
	f.stats.Connected, f.stats.Error = true, ""
	if resumed {
		f.stats.Resumed++
		f.stats.State = StateSynced
		return nil
	}
	f.forgetLocked()
	f.views = make(map[uint32]*view)
	f.loading, f.snapshot = true, 0
	f.stats.Epoch, f.stats.State = epoch, StateStale
	return nil
}

// namespace begins to follow a namespace, or not.
func (f *Residency) namespace(v *values) error {
	id, digestBytes, text := v.number(), v.bytes(), v.bytes()
	var digest connector.NamespaceDigest
	switch {
	case v.err != nil:
		return nil
	case id >= maxNamespaces || len(digestBytes) != len(digest):
		return fmt.Errorf("%w: namespace %d with a digest of %d bytes", errResidencyFrame, id, len(digestBytes))
	case f.views[uint32(id)] != nil: // said again by a resumed stream
		return nil
	}
	copy(digest[:], digestBytes)
	f.views[uint32(id)] = nil
	m, err := connector.ParseManifest(text)
	if err != nil { // lost, or of another version: its records are of no use here
		f.stats.IgnoredNamespaces++
		f.opts.Logger.Warn("a store's namespace is ignored", "url", f.opts.URL, "namespace", digest, "error", err)
		return nil
	}
	if m.KeyScheme != connector.KeySchemeTokens { // no prompt's keys are like these
		f.stats.IgnoredNamespaces++
		return nil
	}
	if m.BlockSize != f.opts.BlockSize {
		f.stats.IgnoredNamespaces++
		f.stats.MismatchedBlockSize++
		f.opts.Logger.Warn("a store's namespace has another block size than the router and is ignored",
			"url", f.opts.URL, "namespace", digest, "model", m.Model, "block_size", m.BlockSize, "router", f.opts.BlockSize)
		return nil
	}
	h, ok := f.opts.Holder(digest, m)
	if !ok {
		f.stats.IgnoredNamespaces++
		return nil
	}
	f.views[uint32(id)] = &view{
		holder: h, index: f.index, shards: NewShards(m), loading: f.loading, maxWait: f.opts.MaxWaiting,
		isRoot: f.roots.has,
	}
	return nil
}

// records applies records, those of a snapshot if first is 0.
func (f *Residency) records(v *values) error {
	first, packed := v.number(), v.bytes()
	switch {
	case v.err != nil:
		return nil
	case len(packed)%residencyRecordBytes != 0 || f.loading != (first == 0):
		return fmt.Errorf("%w: %d bytes of records from number %d", errResidencyFrame, len(packed), first)
	case first > 0 && first != f.stats.LastSeq+1:
		return fmt.Errorf("%w: %d follows %d", errResidencyGap, first, f.stats.LastSeq)
	}
	n := len(packed) / residencyRecordBytes
	if first > 0 {
		f.stats.LastSeq += uint64(n)
	}
	f.stats.Records += uint64(n)
	f.snapshot += uint64(n)
	var last *view
	for ; len(packed) > 0; packed = packed[residencyRecordBytes:] {
		view, known := f.views[binary.LittleEndian.Uint32(packed[3:])]
		if !known {
			return fmt.Errorf("%w: a record of a namespace that was not described", errResidencyFrame)
		}
		if view == nil {
			continue
		}
		if last != nil && last != view {
			last.flush()
		}
		last = view
		key, shard := connector.Key(packed[7:]), connector.Shard(binary.LittleEndian.Uint16(packed[1:]))
		switch packed[0] {
		case residencyStored:
			view.stored(key, connector.Key(packed[23:]), shard)
		case residencyRemoved:
			view.removed(key, shard)
		default:
			return fmt.Errorf("%w: a record of kind %d", errResidencyFrame, packed[0])
		}
	}
	if last != nil {
		last.flush()
	}
	return nil
}

func (f *Residency) snapshotEnd(v *values) error {
	seq, count := v.number(), v.number()
	switch {
	case v.err != nil:
		return nil
	case !f.loading:
		return fmt.Errorf("%w: the end of no snapshot", errResidencyFrame)
	case count != f.snapshot:
		return fmt.Errorf("%w: a snapshot of %d records, %d were seen", errResidencyGap, count, f.snapshot)
	}
	for _, view := range f.views {
		if view != nil {
			view.loaded()
		}
	}
	f.loading = false
	f.stats.Snapshots++
	f.stats.LastSeq, f.stats.State = seq, StateSynced
	return nil
}
