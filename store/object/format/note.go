package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store/seal"
)

// Bounds of the small files in bytes.
const (
	maxSmallBytes = 4 << 10
	maxHeadBytes  = 128 << 10
	maxParts      = 512 // of 64 MiB each: a billion records
	maxNodeBytes  = 255
)

// FormatVersion is the format of a bucket that this program reads and writes.
const FormatVersion = 1

// unsealed stands where the id of a key would in a bucket whose lists and records are not sealed.
const unsealed = "none"

// Note is the content of the file format. Its last field is a checksum, in every version.
type Note struct {
	Format int      `json:"format"`
	Bucket BucketID `json:"bucket_id"`
	// Created is when the bucket was first used.
	Created Seconds `json:"created"`
	// Sealed is the id of the key that the bucket was made with, or "none": see [Note.Key].
	Sealed string `json:"sealed"`
	Sum    string `json:"sum"`
}

// NewNote describes a bucket whose lists and records are sealed with the first key of a ring, or not
// at all.
func NewNote(bucket BucketID, created Seconds, ring *seal.Ring) Note {
	n := Note{Format: FormatVersion, Bucket: bucket, Created: created, Sealed: unsealed}
	if ring != nil {
		n.Sealed = seal.KeyName(ring.KeyID())
	}
	return n
}

// Key is the key that the bucket was made with. sealed is false if it was made without one.
func (n *Note) Key() (keyID uint32, sealed bool) {
	id, err := parseNumber(n.Sealed, 8)
	return uint32(id), err == nil
}

// Encode returns the content of the file.
func (n Note) Encode() ([]byte, error) { return encodeJSON(&n, &n.Sum, maxSmallBytes) }

// DecodeNote verifies and decodes the content of the file. With [ErrNewer] this program must leave the
// bucket alone.
func DecodeNote(b []byte) (Note, error) {
	n, err := decodeNote(b)
	if err != nil {
		return Note{}, fmt.Errorf("%s: %w", FormatFile, err)
	}
	return n, nil
}

func decodeNote(b []byte) (n Note, err error) {
	if err := verifyJSON(b, maxSmallBytes); err != nil {
		return n, err
	}
	var first struct{ Format int } // the others may have another form in a newer one
	if err := decodeJSON(b, &first); err != nil {
		return n, err
	}
	if first.Format > FormatVersion {
		return n, fmt.Errorf("%w: format %d", ErrNewer, first.Format)
	}
	if err := decodeJSON(b, &n); err != nil {
		return n, err
	}
	if _, sealed := n.Key(); n.Format < 1 || n.Bucket == (BucketID{}) || !sealed && n.Sealed != unsealed {
		return n, fmt.Errorf("%w: format %d, bucket %s, sealed with %.20q", ErrBad, n.Format, n.Bucket, n.Sealed)
	}
	return n, nil
}

// Head is the content of the file head: which parts there are, and how to follow what comes after them.
type Head struct {
	Bucket BucketID `json:"bucket_id"`
	// Generation grows with each head.
	Generation uint64 `json:"generation"`
	// Needs are features that a program must know to use the bucket. None are defined.
	Needs uint32 `json:"needs"`
	Parts []Part `json:"parts"`
	// Last is the last object of the log that is in the parts.
	Last uint64 `json:"last"`
	// IntervalMS is how often the log grows at most. See [Head.Interval].
	IntervalMS uint32 `json:"interval_ms"`
	Sum        string `json:"sum"`
}

// Part is what a head says of a part.
type Part struct {
	Name    Name   `json:"name"` // of [KindPart]
	Bytes   int64  `json:"bytes"`
	Sum     Sum    `json:"xxh3"`
	Records uint64 `json:"records"`
}

// Bounds of the interval of a head: what it says there costs every node requests, or delay.
const (
	MinInterval = time.Second
	MaxInterval = time.Minute
)

// Interval is how often to ask for the next object of the log, from [MinInterval] to [MaxInterval]
// whatever the head says.
func (h *Head) Interval() time.Duration {
	return min(max(time.Duration(h.IntervalMS)*time.Millisecond, MinInterval), MaxInterval)
}

// Encode returns the content of the file.
func (h Head) Encode() ([]byte, error) {
	if h.Parts == nil {
		h.Parts = []Part{}
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("encode %s: %w: %w", HeadFile, ErrInvalid, err)
	}
	return encodeJSON(&h, &h.Sum, maxHeadBytes)
}

// DecodeHead verifies and decodes the content of the file. With [ErrNewer] this program must leave the
// bucket alone.
func DecodeHead(b []byte, bucket BucketID) (Head, error) {
	h, err := decodeHead(b, bucket)
	if err != nil {
		return Head{}, fmt.Errorf("%s: %w", HeadFile, err)
	}
	return h, nil
}

func decodeHead(b []byte, bucket BucketID) (h Head, err error) {
	if err := verifyJSON(b, maxHeadBytes); err != nil {
		return h, err
	}
	var first struct{ Needs uint32 }
	if err := decodeJSON(b, &first); err != nil {
		return h, err
	}
	if first.Needs != 0 {
		return h, fmt.Errorf("%w: features %#x", ErrNewer, first.Needs)
	}
	if err := decodeJSON(b, &h); err != nil {
		return h, err
	}
	if h.Bucket != bucket {
		return h, fmt.Errorf("%w: %s", ErrForeign, h.Bucket)
	}
	return h, h.check()
}

func (h *Head) check() error {
	if len(h.Parts) > maxParts {
		return fmt.Errorf("%w: %d parts, at most %d", ErrTooLarge, len(h.Parts), maxParts)
	}
	for _, p := range h.Parts {
		if p.Name.Kind != KindPart || p.Name.Number > h.Last || p.Bytes < listOverhead || p.Bytes > MaxPartBytes || p.Records > uint64(p.Bytes)/recordEntryBytes {
			return fmt.Errorf("%w: part %s of %d bytes with %d records, in a head up to log object %d", ErrBad, p.Name, p.Bytes, p.Records, h.Last)
		}
	}
	return nil
}

// Lease is the content of the file lease: which node merges, folds and collects. When it was written is the
// time that the bucket says of the file.
type Lease struct {
	// Node is a name for people, at most 255 bytes.
	Node   string   `json:"node"`
	Writer WriterID `json:"writer"`
	Sum    string   `json:"sum"`
}

// Encode returns the content of the file.
func (l Lease) Encode() ([]byte, error) {
	if len(l.Node) > maxNodeBytes {
		return nil, fmt.Errorf("encode %s: %w: a name of %d bytes", LeaseFile, ErrInvalid, len(l.Node))
	}
	return encodeJSON(&l, &l.Sum, maxSmallBytes)
}

// DecodeLease verifies and decodes the content of the file.
func DecodeLease(b []byte) (l Lease, err error) {
	if err = verifyJSON(b, maxSmallBytes); err == nil {
		err = decodeJSON(b, &l)
	}
	if err == nil && len(l.Node) > maxNodeBytes {
		err = fmt.Errorf("%w: a name of %d bytes", ErrBad, len(l.Node))
	}
	if err != nil {
		return Lease{}, fmt.Errorf("%s: %w", LeaseFile, err)
	}
	return l, nil
}

// sumField begins the last field of a JSON file. The checksum in it is the XXH3-64 of all before.
const sumField = `"sum"`

// encodeJSON encodes v, whose last field is sum.
func encodeJSON(v any, sum *string, most int) ([]byte, error) {
	*sum = ""
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	*sum = sumText(b[:bytes.LastIndex(b, []byte(sumField))])
	if b, err = json.MarshalIndent(v, "", "  "); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if b = append(b, '\n'); len(b) > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), most)
	}
	return b, nil
}

// verifyJSON checks length and checksum of a JSON file, whatever else is in it: so a newer file is told
// from a damaged one.
func verifyJSON(b []byte, most int) error {
	if len(b) > most {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), most)
	}
	at := bytes.LastIndex(b, []byte(sumField))
	if at < 0 || string(bytes.Join(bytes.Fields(b[at:]), nil)) != sumField+`:"`+sumText(b[:at])+`"}` {
		return fmt.Errorf("%w: checksum", ErrBad)
	}
	return nil
}

// decodeJSON decodes a file that was verified.
func decodeJSON(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrBad, err)
	}
	return nil
}

func sumText(b []byte) string { return fmt.Sprintf("%016x", xxh3.Hash(b)) }
