package format

import (
	"encoding/binary"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/seal"
)

const listMagic = "KVCNMAN1"

// Offsets within the header of a list.
const (
	offListVersion  = 8
	offListKind     = 10
	offListFlags    = 11
	offListKeyID    = 12
	offListBucket   = 16
	offListNumber   = 32
	offListWriter   = 40
	offListBody     = 56
	offListSections = 60
	offListPrevious = 64
	offListNonce    = 80
	offListSum      = 104
)

// flagSealed says that the body is encrypted. A program that does not know a flag cannot read the list.
const flagSealed = 1

// Encode returns the bytes of the list. They are sealed if there is a ring of keys. It returns
// [ErrTooLarge] before it allocates them, if they pass the bound of their kind.
func (l *List) Encode(ring *seal.Ring) ([]byte, error) {
	b, err := l.encode(ring)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", l.Name, err)
	}
	return b, nil
}

func (l *List) encode(ring *seal.Ring) ([]byte, error) {
	f, ok := formOf(l.Name.Kind)
	if !ok {
		return nil, fmt.Errorf("%w: it is no list", ErrInvalid)
	}
	spaces, err := l.number()
	if err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	sections := l.sections(spaces)
	for _, s := range sections {
		if !f.has(s.section) {
			return nil, fmt.Errorf("%w: section %d is not for its kind", ErrInvalid, s.section)
		}
	}
	bytes := encodedBytes(sections)
	if bytes > f.most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, bytes, f.most)
	}
	b := make([]byte, listHeaderBytes, bytes)
	for _, s := range sections {
		b = s.encode(b)
	}
	l.encodeHeader(b, f.number, len(sections), ring)
	return l.finish(b, ring), nil
}

// Bytes is the size of the encoded list, whatever the bound of its kind: see [MostBytes].
func (l *List) Bytes() (int64, error) {
	spaces, err := l.number()
	if err != nil {
		return 0, err
	}
	return encodedBytes(l.sections(spaces)), nil
}

func encodedBytes(sections []content) int64 {
	bytes := int64(listOverhead)
	for _, s := range sections {
		bytes += sectionHeaderBytes + s.bytes
	}
	return bytes
}

// encodeHeader fills the first bytes of b, a whole list but for its tail.
func (l *List) encodeHeader(b []byte, kind uint8, sections int, ring *seal.Ring) {
	le := binary.LittleEndian
	number, writer := l.Name.header(l.Writer)
	copy(b, listMagic)
	le.PutUint16(b[offListVersion:], Version)
	b[offListKind] = kind
	copy(b[offListBucket:], l.Bucket[:])
	le.PutUint64(b[offListNumber:], number)
	copy(b[offListWriter:], writer[:])
	le.PutUint32(b[offListBody:], uint32(len(b)-listHeaderBytes))
	le.PutUint32(b[offListSections:], uint32(sections))
	copy(b[offListPrevious:], l.Previous[:])
	if ring != nil {
		b[offListFlags] = flagSealed
		le.PutUint32(b[offListKeyID:], ring.KeyID())
		nonce := seal.NewNonce()
		copy(b[offListNonce:], nonce[:])
	}
	le.PutUint64(b[offListSum:], headerSum(b))
}

// finish appends the tail, a checksum or a tag, after it has sealed the body if there is a ring.
func (l *List) finish(b []byte, ring *seal.Ring) []byte {
	if ring == nil {
		sum := SumOf(b)
		return append(b, sum[:]...)
	}
	aad := listAAD(b, l.Name)
	nonce := [seal.NonceBytes]byte(b[offListNonce:])
	sealed, tag, _ := ring.Seal(b[:listHeaderBytes], b[listHeaderBytes:], aad, &nonce)
	return append(sealed, tag[:]...)
}

// listAAD is what the tag of a sealed list authenticates beside the body: header and name, so that it
// cannot be put under another name.
func listAAD(b []byte, n Name) []byte {
	return append(append(make([]byte, 0, listHeaderBytes+maxNameBytes), b[:listHeaderBytes]...), n.String()...)
}

// check reports what cannot be encoded.
func (l *List) check() error {
	for i := range l.Objects {
		if err := l.Objects[i].check(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if l.Name.Kind == KindIn && l.Name.Number > MaxCounter {
		return fmt.Errorf("%w: sequence %d", ErrInvalid, l.Name.Number)
	}
	for _, s := range l.Sources {
		if s.Sequence > MaxCounter {
			return fmt.Errorf("%w: source %s-%d", ErrInvalid, s.Writer, s.Sequence)
		}
	}
	if l.Name.Kind == KindNamespace {
		if err := l.checkManifest(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if err := l.checkFooter(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// namespaces are those of a list's objects, numbered in the sequence of their first use.
type namespaces struct {
	digests []connector.NamespaceDigest
	numbers map[connector.NamespaceDigest]uint16
}

// number numbers the namespaces of the objects.
func (l *List) number() (*namespaces, error) {
	n := &namespaces{numbers: make(map[connector.NamespaceDigest]uint16)}
	for i := range l.Objects {
		d := l.Objects[i].Namespace
		if i > 0 && d == l.Objects[i-1].Namespace {
			continue
		}
		if _, known := n.numbers[d]; known {
			continue
		}
		if len(n.digests) == MaxNamespaces {
			return nil, fmt.Errorf("%w: more than %d namespaces", ErrTooLarge, MaxNamespaces)
		}
		n.numbers[d] = uint16(len(n.digests))
		n.digests = append(n.digests, d)
	}
	return n, nil
}

// content is a section that is going to be encoded.
type content struct {
	section section
	count   int
	bytes   int64
	append  func(b []byte) []byte
}

// sections are those of the list that have something in them, in their sequence.
func (l *List) sections(spaces *namespaces) []content {
	var objectBytes int64
	for i := range l.Objects {
		objectBytes += l.Objects[i].ListBytes()
	}
	all := []content{
		fixed(sectionNamespaces, spaces.digests, digestBytes, func(d connector.NamespaceDigest, b []byte) []byte { return append(b, d[:]...) }),
		{sectionObjects, len(l.Objects), objectBytes, func(b []byte) []byte {
			for i := range l.Objects {
				b = l.Objects[i].append(b, spaces.numbers[l.Objects[i].Namespace])
			}
			return b
		}},
		fixed(sectionUsed, l.Used, useEntryBytes, Use.append),
		fixed(sectionRemoved, l.Removed, removalEntryBytes, Removal.append),
		fixed(sectionDeleted, l.Deleted, deletedEntryBytes, ObjectID.append),
		fixed(sectionLost, l.Lost, lossEntryBytes, Loss.append),
		fixed(sectionSources, l.Sources, sourceEntryBytes, Source.append),
	}
	if l.Manifest != nil {
		all = append(all, content{sectionManifest, 1, int64(len(l.Manifest)), func(b []byte) []byte { return append(b, l.Manifest...) }})
	}
	kept := all[:0]
	for _, c := range all {
		if c.count > 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// fixed is a section whose entries have one size.
func fixed[E any](s section, all []E, bytes int, encode func(e E, b []byte) []byte) content {
	return content{s, len(all), int64(len(all)) * int64(bytes), func(b []byte) []byte {
		for _, e := range all {
			b = encode(e, b)
		}
		return b
	}}
}

func (c *content) encode(b []byte) []byte {
	h := sectionHeader{c.section, c.section.needed(), uint32(c.count), uint32(c.bytes)}
	at := len(b)
	b = b[:at+sectionHeaderBytes]
	h.encode(b[at:])
	return c.append(b)
}

// append encodes an object of the namespace with a number.
func (o *Object) append(b []byte, namespace uint16) []byte {
	le := binary.LittleEndian
	b = append(b, o.ID[:]...)
	b = le.AppendUint16(b, namespace)
	b = le.AppendUint16(b, uint16(o.Shard))
	b = le.AppendUint16(b, uint16(len(o.Records)))
	b = le.AppendUint16(b, uint16(len(o.Runs)))
	b = le.AppendUint32(b, o.Bytes)
	b = le.AppendUint32(b, o.PayloadBytes)
	b = le.AppendUint32(b, uint32(o.Created))
	b = le.AppendUint32(b, uint32(o.Used))
	b = le.AppendUint16(b, o.Needs)
	b = append(b, o.Codec, 0)
	for _, r := range o.Runs {
		b = le.AppendUint16(b, r.First)
		b = le.AppendUint16(b, r.Depth)
		b = append(b, r.Parent[:]...)
	}
	for i := range o.Records {
		b = append(b, o.Records[i].Key[:]...)
		b = le.AppendUint16(b, o.Records[i].Start)
	}
	return b
}
