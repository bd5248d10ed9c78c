package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/seal"
)

// headerSum is the checksum of the header of a list.
func headerSum(b []byte) uint64 { return xxh3.Hash(b[:offListSum]) }

// DecodeList verifies and decodes the list of an object, for a data object its footer. bucket is the
// bucket's identity. With a ring of keys only sealed lists are accepted. b is overwritten if the list
// is sealed.
func DecodeList(b []byte, name Name, bucket BucketID, ring *seal.Ring) (*List, error) {
	l, err := decodeList(b, name, bucket, ring)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	return l, nil
}

func decodeList(b []byte, name Name, bucket BucketID, ring *seal.Ring) (*List, error) {
	f, ok := formOf(name.Kind)
	if !ok {
		return nil, fmt.Errorf("%w: it is the name of no list", ErrBad)
	}
	h, err := decodeListHeader(b) // a newer list may be larger
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > f.most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), f.most)
	}
	l := &List{Name: name, Bucket: bucket, Writer: h.writer, Previous: h.previous, Sum: SumOf(b)}
	number, writer := name.header(h.writer)
	switch {
	case h.kind != f.number || h.number != number || h.writer != writer:
		return nil, fmt.Errorf("%w: it is list %d of kind %d by %s", ErrBad, h.number, h.kind, h.writer)
	case uint64(h.bodyBytes)+listOverhead != uint64(len(b)):
		return nil, fmt.Errorf("%w: a body of %d bytes in %d", ErrBad, h.bodyBytes, len(b))
	}
	body, err := h.open(b, name, ring)
	if err != nil {
		return nil, err
	}
	if h.bucket != bucket {
		return nil, fmt.Errorf("%w: %s", ErrForeign, h.bucket)
	}
	if err := l.decodeBody(body, h.sections, f); err != nil {
		return nil, err
	}
	return l, nil
}

// listHeader is the header of a list.
type listHeader struct {
	kind, flags         uint8
	keyID               uint32
	bucket              BucketID
	number              uint64
	writer              WriterID
	bodyBytes, sections uint32
	previous            Sum
	nonce               [seal.NonceBytes]byte
}

// decodeListHeader verifies the header of a list by its own checksum, so that a newer list is told from a
// damaged one, and one that is sealed with an unknown key too.
func decodeListHeader(b []byte) (h listHeader, err error) {
	if len(b) < listOverhead {
		return h, fmt.Errorf("%w: %d bytes", ErrBad, len(b))
	}
	le := binary.LittleEndian
	if string(b[:len(listMagic)]) != listMagic || le.Uint64(b[offListSum:]) != headerSum(b) {
		return h, fmt.Errorf("%w: magic or checksum of the header", ErrBad)
	}
	if err := checkVersion(le.Uint16(b[offListVersion:])); err != nil {
		return h, err
	}
	h = listHeader{
		kind: b[offListKind], flags: b[offListFlags], keyID: le.Uint32(b[offListKeyID:]),
		bucket: BucketID(b[offListBucket:]), number: le.Uint64(b[offListNumber:]), writer: WriterID(b[offListWriter:]),
		bodyBytes: le.Uint32(b[offListBody:]), sections: le.Uint32(b[offListSections:]),
		previous: Sum(b[offListPrevious:]), nonce: [seal.NonceBytes]byte(b[offListNonce:]),
	}
	if unknown := h.flags &^ flagSealed; unknown != 0 {
		return h, fmt.Errorf("%w: flags %#x", ErrNewer, unknown)
	}
	return h, nil
}

func checkVersion(version uint16) error {
	switch {
	case version == 0:
		return fmt.Errorf("%w: version 0", ErrBad)
	case version > Version:
		return fmt.Errorf("%w: version %d", ErrNewer, version)
	}
	return nil
}

// open verifies a list and returns its body, decrypted where it lies.
func (h *listHeader) open(b []byte, name Name, ring *seal.Ring) ([]byte, error) {
	end := len(b) - listTailBytes
	if h.flags&flagSealed == 0 {
		if Sum(b[end:]) != SumOf(b[:end]) {
			return nil, fmt.Errorf("%w: checksum", ErrBad)
		}
		if ring != nil {
			return nil, ErrUnsealed
		}
		return b[listHeaderBytes:end], nil
	}
	tag := [seal.TagBytes]byte(b[end:])
	body, err := ring.Open(b[listHeaderBytes:listHeaderBytes], b[listHeaderBytes:end], listAAD(b, name), &h.nonce, &tag, h.keyID)
	if errors.Is(err, seal.ErrForged) {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	return body, err
}

// has reports whether lists of the form may have a section.
func (f *form) has(s section) bool { return slices.Contains(f.sections, s) }

// decodeBody decodes the sections. One that is not known is passed over, unless it is needed.
func (l *List) decodeBody(body []byte, sections uint32, f form) error {
	var spaces []connector.NamespaceDigest
	var last section
	for range sections {
		var h sectionHeader
		entries, rest, err := h.next(body)
		switch {
		case err != nil:
			return err
		case h.section <= last:
			return fmt.Errorf("%w: section %d after section %d", ErrBad, h.section, last)
		case h.section >= sectionsEnd && h.needed:
			return fmt.Errorf("%w: section %d", ErrNewer, h.section)
		case h.section < sectionsEnd && !f.has(h.section):
			return fmt.Errorf("%w: section %d is not for its kind", ErrBad, h.section)
		}
		if err := l.decodeSection(h.section, entries, h.count, &spaces); err != nil {
			return fmt.Errorf("section %d: %w", h.section, err)
		}
		last, body = h.section, rest
	}
	if len(body) > 0 {
		return fmt.Errorf("%w: %d bytes after the last section", ErrBad, len(body))
	}
	if l.Name.Kind == KindNamespace {
		return l.checkManifest()
	}
	return l.checkFooter()
}

func (l *List) decodeSection(s section, b []byte, count uint32, spaces *[]connector.NamespaceDigest) (err error) {
	switch s {
	case sectionNamespaces:
		if count > MaxNamespaces {
			return fmt.Errorf("%w: %d namespaces", ErrBad, count)
		}
		*spaces, err = entries(b, count, digestBytes, decodeDigest)
	case sectionObjects:
		l.Objects, err = decodeObjects(b, count, *spaces)
	case sectionUsed:
		l.Used, err = entries(b, count, useEntryBytes, decodeUse)
	case sectionRemoved:
		l.Removed, err = entries(b, count, removalEntryBytes, decodeRemoval)
	case sectionDeleted:
		l.Deleted, err = entries(b, count, deletedEntryBytes, decodeDeleted)
	case sectionLost:
		l.Lost, err = entries(b, count, lossEntryBytes, decodeLoss)
	case sectionSources:
		l.Sources, err = entries(b, count, sourceEntryBytes, decodeSource)
	case sectionManifest:
		if count != 1 {
			return fmt.Errorf("%w: %d manifests", ErrBad, count)
		}
		l.Manifest = bytes.Clone(b)
	}
	return err
}

// checkManifest reports an error if the manifest is not that of the namespace in the name.
func (l *List) checkManifest() error {
	if len(l.Manifest) == 0 || sha256.Sum256(l.Manifest) != l.Name.Namespace {
		return fmt.Errorf("%w: the manifest of another namespace, or of none", ErrBad)
	}
	return nil
}

// decodeObjects decodes the section of objects. It looks at all lengths before it allocates: then the
// records and runs of all objects have one array each.
func decodeObjects(b []byte, count uint32, spaces []connector.NamespaceDigest) ([]Object, error) {
	records, runs, err := measureObjects(b, count)
	if err != nil || count == 0 {
		return nil, err
	}
	all := make([]Object, count)
	allRuns, allRecords := make([]Run, runs), make([]Record, records)
	for i := range all {
		o := &all[i]
		namespace, runs, records := o.decode(b)
		if namespace >= len(spaces) {
			return nil, fmt.Errorf("%w: object %s is of namespace %d of %d", ErrBad, o.ID, namespace, len(spaces))
		}
		o.Namespace = spaces[namespace]
		o.Runs, allRuns = allRuns[:runs:runs], allRuns[runs:]
		o.Records, allRecords = allRecords[:records:records], allRecords[records:]
		b = o.decodeContent(b[objectEntryBytes:])
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// measureObjects adds up the records and runs of count objects, which must be all of b.
func measureObjects(b []byte, count uint32) (records, runs int, err error) {
	for i := range count {
		if len(b) < objectEntryBytes {
			return 0, 0, fmt.Errorf("%w: %d objects of %d", ErrBad, i, count)
		}
		_, itsRuns, itsRecords := new(Object).decode(b)
		bytes := objectEntryBytes + itsRuns*runEntryBytes + itsRecords*recordEntryBytes
		if itsRecords == 0 || bytes > len(b) {
			return 0, 0, fmt.Errorf("%w: object %d has %d records, and %d bytes of %d", ErrBad, i, itsRecords, bytes, len(b))
		}
		records, runs, b = records+itsRecords, runs+itsRuns, b[bytes:]
	}
	if len(b) > 0 {
		return 0, 0, fmt.Errorf("%w: %d bytes after the last object", ErrBad, len(b))
	}
	return records, runs, nil
}

// decode reads what comes before the runs of an object.
func (o *Object) decode(b []byte) (namespace, runs, records int) {
	le := binary.LittleEndian
	o.ID = ObjectID(b[:idBytes])
	b = b[idBytes:]
	o.Shard = connector.Shard(le.Uint16(b[2:]))
	o.Bytes, o.PayloadBytes = le.Uint32(b[8:]), le.Uint32(b[12:])
	o.Created, o.Used = Seconds(le.Uint32(b[16:])), Seconds(le.Uint32(b[20:]))
	o.Needs, o.Codec = le.Uint16(b[24:]), b[26]
	return int(le.Uint16(b)), int(le.Uint16(b[6:])), int(le.Uint16(b[4:]))
}

// decodeContent reads the runs and records of an object, and returns what follows.
func (o *Object) decodeContent(b []byte) (rest []byte) {
	le := binary.LittleEndian
	for i := range o.Runs {
		o.Runs[i] = Run{First: le.Uint16(b), Depth: le.Uint16(b[2:]), Parent: connector.Key(b[4:runEntryBytes])}
		b = b[runEntryBytes:]
	}
	for i := range o.Records {
		o.Records[i] = Record{Key: connector.Key(b[:connector.KeySize]), Start: le.Uint16(b[connector.KeySize:])}
		b = b[recordEntryBytes:]
	}
	return b
}
