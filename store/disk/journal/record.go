package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/record"
)

// Location is a slot of a segment.
type Location struct {
	Segment uint32
	Slot    uint32
}

// NoLocation stands for an unknown parent.
var NoLocation = Location{1<<32 - 1, 1<<32 - 1}

// Record is what the journal keeps of a record.
type Record struct {
	Location  Location
	Namespace uint16
	Shard     connector.Shard
	Key       connector.Key
	Parent    connector.Key
	// ParentAt is where the parent's record was, Depth how many blocks come before this one.
	ParentAt Location
	Depth    uint16
	Bytes    uint32
	Seq      uint64
	// Scope, KeyScheme, Algorithm, KeyID and Flags are those of the record's header. Of
	// records of format 1 the scope is [connector.UnknownScope] and the rest 0.
	Scope     connector.ScopeDigest
	KeyScheme record.KeyScheme
	Algorithm uint8
	KeyID     uint32
	Flags     uint16
}

// Keys begin with a letter that says what they are of; numbers in keys are big-endian so
// that they sort.
const (
	prefixMeta      = 'm'
	prefixNamespace = 'n'
	prefixSegment   = 's'
	prefixRecord    = 'r'
	prefixSize      = 'z'

	recordKeyBytes = 9
	// The length of a record's value tells its format.
	firstValueBytes  = 62
	recordValueBytes = 86
)

func recordKey(dst []byte, at Location) []byte {
	dst = append(dst[:0], prefixRecord)
	dst = binary.BigEndian.AppendUint32(dst, at.Segment)
	return binary.BigEndian.AppendUint32(dst, at.Slot)
}

func (r *Record) appendValue(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint16(dst, r.Namespace)
	dst = le.AppendUint16(dst, uint16(r.Shard))
	dst = le.AppendUint16(dst, r.Depth)
	dst = le.AppendUint32(dst, 0) // reserved
	dst = le.AppendUint32(dst, r.Bytes)
	dst = le.AppendUint64(dst, r.Seq)
	dst = append(dst, r.Key[:]...)
	dst = append(dst, r.Parent[:]...)
	dst = le.AppendUint32(dst, r.ParentAt.Segment)
	dst = le.AppendUint32(dst, r.ParentAt.Slot)
	dst = append(dst, r.Scope[:]...)
	dst = append(dst, byte(r.KeyScheme), r.Algorithm)
	dst = le.AppendUint32(dst, r.KeyID)
	return le.AppendUint16(dst, r.Flags)
}

var errMalformed = errors.New("malformed journal entry")

func (r *Record) decode(key, value []byte) error {
	if len(key) != recordKeyBytes || (len(value) != recordValueBytes && len(value) != firstValueBytes) {
		return fmt.Errorf("%w: record key of %d bytes, value of %d", errMalformed, len(key), len(value))
	}
	le := binary.LittleEndian
	r.Location = Location{binary.BigEndian.Uint32(key[1:]), binary.BigEndian.Uint32(key[5:])}
	r.Namespace = le.Uint16(value)
	r.Shard = connector.Shard(le.Uint16(value[2:]))
	r.Depth = le.Uint16(value[4:])
	r.Bytes = le.Uint32(value[10:])
	r.Seq = le.Uint64(value[14:])
	copy(r.Key[:], value[22:])
	copy(r.Parent[:], value[38:])
	r.ParentAt = Location{le.Uint32(value[54:]), le.Uint32(value[58:])}
	r.Scope, r.KeyScheme, r.Algorithm, r.KeyID, r.Flags = connector.UnknownScope, 0, 0, 0, 0
	if len(value) == firstValueBytes {
		return nil
	}
	copy(r.Scope[:], value[62:])
	r.KeyScheme, r.Algorithm = record.KeyScheme(value[78]), value[79]
	r.KeyID = le.Uint32(value[80:])
	r.Flags = le.Uint16(value[84:])
	return nil
}

// Segment is what the journal keeps of a segment file.
type Segment struct {
	ID        uint32
	Slots     uint32
	SlotBytes int64
}

// Namespace is what the journal keeps of a namespace.
type Namespace struct {
	ID     uint16
	Digest connector.NamespaceDigest
}

// Batch collects changes that become visible and durable together.
type Batch struct {
	j     *Journal
	g     *generation // that b is of
	b     *pebble.Batch
	key   []byte
	value []byte
}

// NewBatch returns an empty batch that can be committed again and again. What was put into
// it and not committed is forgotten when a new generation of the journal begins.
func (j *Journal) NewBatch() *Batch {
	b := &Batch{j: j}
	b.fresh()
	return b
}

// fresh makes an empty batch of the journal's present generation.
func (b *Batch) fresh() {
	b.g = b.j.gen.Load()
	b.b = b.g.db.NewBatch()
}

// current is the batch to put something into.
func (b *Batch) current() *pebble.Batch {
	if b.g != b.j.gen.Load() {
		b.fresh()
	}
	return b.b
}

// PutRecord adds or replaces the record of a slot.
func (b *Batch) PutRecord(r *Record) error {
	b.key = recordKey(b.key, r.Location)
	b.value = r.appendValue(b.value[:0])
	return b.current().Set(b.key, b.value, nil)
}

// DeleteRecord empties a slot.
func (b *Batch) DeleteRecord(at Location) error {
	b.key = recordKey(b.key, at)
	return b.current().Delete(b.key, nil)
}

// PutSize notes the payload size of a namespace's shard.
func (b *Batch) PutSize(namespace uint16, shard connector.Shard, bytes uint32) error {
	return b.current().Set(sizeKey(namespace, shard), binary.LittleEndian.AppendUint32(nil, bytes), nil)
}

// DeleteSize forgets the payload size of a namespace's shard.
func (b *Batch) DeleteSize(namespace uint16, shard connector.Shard) error {
	return b.current().Delete(sizeKey(namespace, shard), nil)
}

// PutNamespace notes the number of a namespace, DeleteNamespace frees it.
func (b *Batch) PutNamespace(n Namespace) error {
	return b.current().Set(namespaceKey(n.ID), n.Digest[:], nil)
}

// DeleteNamespace forgets a namespace, which has no records.
func (b *Batch) DeleteNamespace(id uint16) error { return b.current().Delete(namespaceKey(id), nil) }

// PutSegment notes a segment.
func (b *Batch) PutSegment(s Segment) error {
	return b.current().Set(segmentKey(s.ID), s.value(), nil)
}

func sizeKey(namespace uint16, shard connector.Shard) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{prefixSize}, namespace), uint16(shard))
}

func namespaceKey(id uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{prefixNamespace}, id)
}

func segmentKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{prefixSegment}, id) }

func (s *Segment) value() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, s.Slots), uint64(s.SlotBytes))
}

// Sizes calls f for every payload size noted.
func (j *Journal) Sizes(f func(namespace uint16, shard connector.Shard, bytes uint32)) error {
	return scan(j.gen.Load().db, []byte{prefixSize}, []byte{prefixSize + 1}, func(k, v []byte) error {
		if len(k) != 5 || len(v) != 4 {
			return fmt.Errorf("%w: size", errMalformed)
		}
		f(binary.BigEndian.Uint16(k[1:]), connector.Shard(binary.BigEndian.Uint16(k[3:])), binary.LittleEndian.Uint32(v))
		return nil
	})
}

// Empty reports whether there is nothing to commit.
func (b *Batch) Empty() bool { return b.current().Empty() }

// Discard empties the batch. It must not be called after Commit failed: the batch may still
// be in use, and is put aside by itself when the next generation begins.
func (b *Batch) Discard() { b.b.Reset() }

// Commit applies the batch and empties it. It is durable after the next barrier.
func (b *Batch) Commit() error {
	p := b.current()
	err := b.g.call("commit to journal", func() error { return p.Commit(pebble.NoSync) })
	if err != nil {
		return err
	}
	p.Reset()
	return nil
}

// PutSegment notes a segment.
func (j *Journal) PutSegment(s Segment) error { return j.set(segmentKey(s.ID), s.value()) }

// DeleteSegment forgets a segment, whose records have been deleted before.
func (j *Journal) DeleteSegment(id uint32) error {
	g := j.gen.Load()
	return g.call("delete from journal", func() error { return g.db.Delete(segmentKey(id), pebble.NoSync) })
}

// PutMeta stores a small value under a name.
func (j *Journal) PutMeta(name string, value []byte) error {
	return j.set(append([]byte{prefixMeta}, name...), value)
}

// Meta returns the value stored under a name, or nil.
func (j *Journal) Meta(name string) ([]byte, error) {
	value := make(chan []byte, 1)
	g := j.gen.Load()
	err := g.call("read journal", func() error {
		v, closer, err := g.db.Get(append([]byte{prefixMeta}, name...))
		if errors.Is(err, pebble.ErrNotFound) {
			value <- nil
			return nil
		}
		if err != nil {
			return err
		}
		value <- append([]byte{}, v...)
		return closer.Close()
	})
	if err != nil {
		return nil, err
	}
	return <-value, nil
}

func (j *Journal) set(key, value []byte) error {
	g := j.gen.Load()
	return g.call("write to journal", func() error { return g.db.Set(key, value, pebble.NoSync) })
}

// Namespaces returns all namespaces.
func (j *Journal) Namespaces() ([]Namespace, error) {
	var out []Namespace
	err := scan(j.gen.Load().db, []byte{prefixNamespace}, []byte{prefixNamespace + 1}, func(k, v []byte) error {
		if len(k) != 3 || len(v) != len(connector.NamespaceDigest{}) {
			return fmt.Errorf("%w: namespace", errMalformed)
		}
		out = append(out, Namespace{ID: binary.BigEndian.Uint16(k[1:]), Digest: connector.NamespaceDigest(v)})
		return nil
	})
	return out, err
}

// Segments returns all segments.
func (j *Journal) Segments() ([]Segment, error) {
	var out []Segment
	err := scan(j.gen.Load().db, []byte{prefixSegment}, []byte{prefixSegment + 1}, func(k, v []byte) error {
		if len(k) != 5 || len(v) != 12 {
			return fmt.Errorf("%w: segment", errMalformed)
		}
		out = append(out, Segment{
			ID:        binary.BigEndian.Uint32(k[1:]),
			Slots:     binary.LittleEndian.Uint32(v),
			SlotBytes: int64(binary.LittleEndian.Uint64(v[4:])),
		})
		return nil
	})
	return out, err
}

// Records calls f for the records of the segments from first up to and not including
// end, in the order of their location. The record is valid during the call. Entries that
// cannot be decoded are passed to bad.
func (j *Journal) Records(first, end uint32, f func(*Record) error, bad func(error)) error {
	return records(j.gen.Load().db, first, end, f, bad, direct)
}

func records(from pebble.Reader, first, end uint32, f func(*Record) error, bad func(error), step stepper) error {
	lower := binary.BigEndian.AppendUint32([]byte{prefixRecord}, first)
	upper := binary.BigEndian.AppendUint32([]byte{prefixRecord}, end)
	if end == 1<<32-1 {
		upper = []byte{prefixRecord + 1}
	}
	var r Record
	return scanSteps(from, lower, upper, step, func(k, v []byte) error {
		if err := r.decode(k, v); err != nil {
			bad(err)
			return nil
		}
		return f(&r)
	})
}

type stepper func(func() bool) (bool, error)

func direct(f func() bool) (bool, error) { return f(), nil }

// scan calls f for the entries of a range. It runs in the caller's goroutine: reading goes on
// where writing has failed.
func scan(from pebble.Reader, lower, upper []byte, f func(k, v []byte) error) error {
	return scanSteps(from, lower, upper, direct, f)
}

func scanSteps(from pebble.Reader, lower, upper []byte, step stepper, f func(k, v []byte) error) error {
	err := unlessClosed(func() error {
		it, err := from.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return err
		}
		ok, err := step(it.First)
		for ; ok; ok, err = step(it.Next) {
			v, err := it.ValueAndErr()
			if err == nil {
				err = f(it.Key(), v)
			}
			if err != nil {
				return errors.Join(err, it.Close())
			}
		}
		if err != nil {
			return err // discarded: nothing of it may be touched
		}
		return errors.Join(it.Error(), it.Close())
	})
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	return nil
}
