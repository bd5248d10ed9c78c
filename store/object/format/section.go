package format

import (
	"encoding/binary"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// Sizes of lists in bytes.
const (
	listHeaderBytes    = 112
	listTailBytes      = sumBytes // or a tag
	listOverhead       = listHeaderBytes + listTailBytes
	sectionHeaderBytes = 12

	digestBytes   = 32
	idBytes       = 16
	writerBytes   = 10
	sequenceBytes = 6
	sumBytes      = 16

	objectEntryBytes  = idBytes + 28
	runEntryBytes     = 4 + connector.KeySize
	recordEntryBytes  = connector.KeySize + 2
	useEntryBytes     = idBytes + 4
	removalEntryBytes = idBytes + 8
	deletedEntryBytes = idBytes
	lossEntryBytes    = idBytes + 4
	sourceEntryBytes  = writerBytes + sequenceBytes
)

// MaxNamespaces is how many namespaces the objects of a list are of at most: what a u16 can count.
const MaxNamespaces = 1 << 16

// section is the type of a section. In a list they come in the sequence of their types, each once.
type section uint8

const (
	sectionNamespaces section = iota + 1
	sectionObjects
	sectionUsed
	sectionRemoved
	sectionDeleted
	sectionLost
	sectionSources
	sectionManifest
	sectionsEnd // none from here on is known
)

// needed reports whether a program that does not know the section must leave the list alone. To know
// of no use makes an object go too early, and no more.
func (s section) needed() bool { return s != sectionUsed }

// sectionHeader comes before the entries of a section.
type sectionHeader struct {
	section section
	needed  bool
	count   uint32
	bytes   uint32
}

func (h *sectionHeader) encode(b []byte) {
	le := binary.LittleEndian
	clear(b[:sectionHeaderBytes])
	b[0] = uint8(h.section)
	if h.needed {
		b[1] = 1
	}
	le.PutUint32(b[4:], h.count)
	le.PutUint32(b[8:], h.bytes)
}

// next takes a section off the front of body.
func (h *sectionHeader) next(body []byte) (entries, rest []byte, err error) {
	if len(body) < sectionHeaderBytes {
		return nil, nil, fmt.Errorf("%w: the body ends in the header of a section", ErrBad)
	}
	le := binary.LittleEndian
	*h = sectionHeader{section(body[0]), body[1] != 0, le.Uint32(body[4:]), le.Uint32(body[8:])}
	body = body[sectionHeaderBytes:]
	if uint64(h.bytes) > uint64(len(body)) {
		return nil, nil, fmt.Errorf("%w: section %d has %d bytes of %d", ErrBad, h.section, h.bytes, len(body))
	}
	return body[:h.bytes], body[h.bytes:], nil
}

// entries decodes a section whose entries have one size.
func entries[E any](b []byte, count uint32, bytes int, decode func(b []byte) E) ([]E, error) {
	if uint64(count)*uint64(bytes) != uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d entries of %d bytes in %d", ErrBad, count, bytes, len(b))
	}
	if count == 0 {
		return nil, nil
	}
	all := make([]E, count)
	for i := range all {
		all[i] = decode(b[i*bytes:])
	}
	return all, nil
}

func decodeUse(b []byte) Use {
	return Use{ObjectID(b[:idBytes]), Seconds(binary.LittleEndian.Uint32(b[idBytes:]))}
}

func (u Use) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(b, u.Object[:]...), uint32(u.When))
}

func decodeRemoval(b []byte) Removal {
	return Removal{ObjectID(b[:idBytes]), Seconds(binary.LittleEndian.Uint32(b[idBytes:])), Cause(b[idBytes+4])}
}

func (r Removal) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, r.Object[:]...), uint32(r.When))
	return append(b, uint8(r.Cause), 0, 0, 0)
}

func decodeDeleted(b []byte) ObjectID { return ObjectID(b[:idBytes]) }

func (id ObjectID) append(b []byte) []byte { return append(b, id[:]...) }

func decodeLoss(b []byte) Loss { return Loss{ObjectID(b[:idBytes]), Cause(b[idBytes])} }

func (l Loss) append(b []byte) []byte {
	return append(append(b, l.Object[:]...), uint8(l.Cause), 0, 0, 0)
}

func decodeSource(b []byte) Source {
	var n [8]byte
	copy(n[:], b[writerBytes:sourceEntryBytes])
	return Source{WriterID(b[:writerBytes]), binary.LittleEndian.Uint64(n[:])}
}

func (s Source) append(b []byte) []byte {
	b = append(b, s.Writer[:]...)
	return binary.LittleEndian.AppendUint64(b, s.Sequence)[:len(b)+sequenceBytes]
}

func decodeDigest(b []byte) connector.NamespaceDigest {
	return connector.NamespaceDigest(b[:digestBytes])
}
