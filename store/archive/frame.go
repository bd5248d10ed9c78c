// Package archive carries records from one store to another in a file.
//
// A file is a sequence of frames, each at a multiple of 64 bytes: namespaces with their manifests, records, and one that ends the
// file. The header of a frame has a checksum, and one of what comes after it. Where a frame is damaged, the next is looked for.
package archive

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

const (
	magic      = "kvcnarc1"
	alignBytes = 64
	sumBytes   = sha256.Size
	// headerBytes is the size of a frame's header; its last bytes are the sum of those before.
	headerBytes = 192
	// maxManifestBytes bounds a manifest.
	maxManifestBytes = 1 << 20
)

// kind is that of a frame.
type kind uint8

const (
	kindNamespace kind = iota + 1
	kindRecord
	kindEnd
)

// frame is a header.
type frame struct {
	kind kind
	// Record says what a record is. Of a namespace only the digest counts.
	store.Record
	scope connector.ScopeDigest
	// bytes are those of what follows, sum is its checksum.
	bytes int
	sum   [sumBytes]byte
}

// append appends the header to b.
func (f *frame) append(b []byte) []byte {
	begin := len(b)
	b = append(b, magic...)
	b = append(b, byte(f.kind), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(f.ID.Shard))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.bytes))
	b = append(b, f.ID.Namespace[:]...)
	b = append(b, f.ID.Key[:]...)
	b = append(b, f.Parent[:]...)
	b = append(b, f.Proof[:]...)
	b = append(b, f.scope[:]...)
	b = append(b, f.sum[:]...)
	sum := sha256.Sum256(b[begin:])
	return append(b, sum[:]...)
}

// errHeader says that there is no intact header.
var errHeader = errors.New("archive: no header of a frame")

// parse reads a header of [headerBytes].
func (f *frame) parse(b []byte) error {
	body, sum := b[:headerBytes-sumBytes], b[headerBytes-sumBytes:headerBytes]
	if string(body[:len(magic)]) != magic || sha256.Sum256(body) != [sumBytes]byte(sum) {
		return errHeader
	}
	b = body[len(magic):]
	f.kind, f.ID.Shard, f.bytes = kind(b[0]), connector.Shard(binary.LittleEndian.Uint16(b[2:])), int(binary.LittleEndian.Uint32(b[4:]))
	b = b[8:]
	for _, field := range [][]byte{f.ID.Namespace[:], f.ID.Key[:], f.Parent[:], f.Proof[:], f.scope[:], f.sum[:]} {
		b = b[copy(field, b):]
	}
	switch most := map[kind]int{kindNamespace: maxManifestBytes, kindRecord: store.MaxPayloadBytes, kindEnd: 0}; {
	case f.kind < kindNamespace || f.kind > kindEnd:
		return fmt.Errorf("archive: a frame of kind %d: a newer program wrote it", f.kind)
	case f.bytes > most[f.kind] || f.bytes == 0 && f.kind != kindEnd:
		return errHeader
	}
	return nil
}

// padding is what follows n bytes up to the next frame.
func padding(n int) int { return (alignBytes - n%alignBytes) % alignBytes }

// writer writes frames.
type writer struct {
	w       *bufio.Writer
	scratch []byte
}

// bufferBytes is what is written and read at one time.
const bufferBytes = 1 << 20

func newWriter(w io.Writer) *bufio.Writer { return bufio.NewWriterSize(w, bufferBytes) }

func (w *writer) write(f *frame, payload []byte) error {
	f.bytes, f.sum = len(payload), sha256.Sum256(payload)
	w.scratch = f.append(w.scratch[:0])
	_, _ = w.w.Write(w.scratch) // it keeps the first error
	_, _ = w.w.Write(payload)
	_, err := w.w.Write(make([]byte, padding(len(payload))))
	return err
}

// reader reads frames.
type reader struct {
	r *bufio.Reader
	// skipped are bytes that were no frame.
	skipped int64
}

// next reads the next intact header. It returns [io.EOF] where there is none.
func (r *reader) next(f *frame) error {
	for {
		b, err := r.r.Peek(headerBytes)
		if err != nil {
			if errors.Is(err, io.EOF) {
				r.skipped += int64(len(b))
				return io.EOF
			}
			return err
		}
		switch err := f.parse(b); {
		case err == nil:
			_, err = r.r.Discard(headerBytes)
			return err
		case !errors.Is(err, errHeader):
			return err
		}
		n, _ := r.r.Discard(alignBytes)
		r.skipped += int64(n)
	}
}

// errDamaged says that what follows a header is not what it was.
var errDamaged = errors.New("archive: the checksum is wrong")

// payload reads what follows a header into b, and the padding after it.
func (r *reader) payload(f *frame, b []byte) error {
	if _, err := io.ReadFull(r.r, b); err != nil {
		return err
	}
	if _, err := r.r.Discard(padding(len(b))); err != nil {
		return err
	}
	if sha256.Sum256(b) != f.sum {
		return errDamaged
	}
	return nil
}
