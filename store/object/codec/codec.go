// Package codec compresses payloads. Keys and values are noise but for their exponents: so elements are
// split into byte planes, and only the plane with the exponents is compressed. docs/object-format.md
// describes the bytes.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/kvconn/kvconn/store"
)

// Planes is the number of this codec in the headers of records, where 0 is no compression.
const Planes = 1

// ErrBad says that bytes are not what [Codec.Encode] made of a payload of that length.
var ErrBad = errors.New("codec: not an encoded payload of this length")

const (
	lengthBytes = 4
	// windowBytes is how far zstd looks back for repetitions. There are hardly any in exponents, which
	// shrink because few values are frequent; a larger window costs memory and cache.
	windowBytes = 256 << 10
)

// Codec encodes and decodes payloads. It is safe for concurrent use.
type Codec struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
	planes  sync.Pool // of *[]byte
}

// New returns a codec that encodes at most workers payloads at one time, and decodes as many; more wait.
// Each worker takes about 1 MiB from its first payload on, and a plane of the largest.
func New(workers int) (*Codec, error) {
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(workers),
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(windowBytes),
		// Fast levels give up where nothing repeats. That is so in all planes.
		zstd.WithAllLitEntropyCompression(true),
		zstd.WithSingleSegment(true), // the frame says how long its content is
		zstd.WithEncoderCRC(false),   // the record has a checksum or a tag
	)
	if err != nil {
		return nil, fmt.Errorf("codec of %d workers: %w", workers, err)
	}
	decoder, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(workers),
		zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(store.MaxPayloadBytes),
		zstd.WithDecoderLowmem(true),
	)
	if err != nil {
		return nil, fmt.Errorf("codec of %d workers: %w", workers, err)
	}
	return &Codec{encoder: encoder, decoder: decoder}, nil
}

// Encode appends to dst what a payload of elements of width bytes becomes. smaller is false, and
// encoded is dst, if that is not shorter than the payload, or the payload is not made of such elements.
// dst must not overlap the payload; a capacity of as many bytes more spares an allocation.
func (c *Codec) Encode(dst, payload []byte, width int) (encoded []byte, smaller bool) {
	if !known(width) || len(payload) == 0 || len(payload)%width != 0 || len(payload) > store.MaxPayloadBytes {
		return dst, false
	}
	count := len(payload) / width
	raw := (width - 1) * (lengthBytes + count)
	out := slices.Grow(dst, max(len(payload), raw+lengthBytes))
	top := payload
	if width > 1 {
		scratch := c.plane(count)
		defer c.planes.Put(scratch)
		top = *scratch
		out = out[:len(dst)+raw]
		split(rawPlanes(out[len(dst):], count, width), top, payload)
	}
	at := len(out)
	out = append(out, 0, 0, 0, 0)
	out = c.encoder.EncodeAll(top, out)
	binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-lengthBytes))
	if len(out)-len(dst) >= len(payload) {
		return dst, false
	}
	return out, true
}

// rawPlanes writes the lengths of the planes that are stored as they are, and returns these planes.
func rawPlanes(b []byte, count, width int) (planes [maxWidth - 1][]byte) {
	for i := range width - 1 {
		binary.LittleEndian.PutUint32(b, uint32(count))
		planes[i], b = b[lengthBytes:lengthBytes+count], b[lengthBytes+count:]
	}
	return planes
}

// Decode fills the payload with what was encoded. It takes no more memory than the payload, whatever
// encoded says. After an error, which wraps [ErrBad], the payload is undefined.
func (c *Codec) Decode(payload, encoded []byte) error {
	if len(payload) > store.MaxPayloadBytes || len(encoded) >= len(payload) {
		return fmt.Errorf("%w: %d bytes for %d", ErrBad, len(encoded), len(payload))
	}
	for width := 1; width <= maxWidth; width *= 2 {
		planes, frame, ok := cut(encoded, len(payload), width)
		if !ok {
			continue
		}
		if width == 1 {
			return c.expand(payload, frame)
		}
		scratch := c.plane(len(payload) / width)
		defer c.planes.Put(scratch)
		if err := c.expand(*scratch, frame); err != nil {
			return err
		}
		merge(payload, planes, *scratch, width)
		return nil
	}
	return fmt.Errorf("%w: its planes have other lengths", ErrBad)
}

// cut divides an encoded payload of elements of width bytes into its planes. ok is false if the lengths
// in it are others.
func cut(encoded []byte, payloadBytes, width int) (planes [maxWidth - 1][]byte, frame []byte, ok bool) {
	count := payloadBytes / width
	if payloadBytes%width != 0 || len(encoded) < (width-1)*(lengthBytes+count)+lengthBytes {
		return planes, nil, false
	}
	for i := range width - 1 {
		if binary.LittleEndian.Uint32(encoded) != uint32(count) {
			return planes, nil, false
		}
		planes[i], encoded = encoded[lengthBytes:lengthBytes+count], encoded[lengthBytes+count:]
	}
	frame = encoded[lengthBytes:]
	return planes, frame, uint64(binary.LittleEndian.Uint32(encoded)) == uint64(len(frame))
}

// expand fills dst with the content of a frame, which must be as long.
func (c *Codec) expand(dst, frame []byte) error {
	var h zstd.Header
	if err := h.Decode(frame); err != nil {
		return fmt.Errorf("%w: %w", ErrBad, err)
	}
	if h.Skippable || !h.HasFCS || h.FrameContentSize != uint64(len(dst)) || h.DictionaryID != 0 {
		return fmt.Errorf("%w: a frame of other content", ErrBad)
	}
	out, err := c.decoder.DecodeAll(frame, dst[:0:len(dst)])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBad, err)
	}
	if len(out) != len(dst) {
		return fmt.Errorf("%w: a frame of %d bytes for %d", ErrBad, len(out), len(dst))
	}
	if len(out) > 0 && &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}

// plane returns room for count bytes, to be put back.
func (c *Codec) plane(count int) *[]byte {
	b, _ := c.planes.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
	}
	*b = slices.Grow((*b)[:0], count)[:count]
	return b
}
