package object

import (
	"fmt"
	"io"
	"sort"
)

// body is bytes that lie in several places, as an [io.ReadSeeker]. It is for one goroutine at a time.
type body struct {
	parts [][]byte
	from  []int64 // where each part begins
	bytes int64
	at    int64
	part  int // that at is in
}

// add appends a part.
func (b *body) add(part []byte) {
	if len(part) > 0 {
		b.parts, b.from = append(b.parts, part), append(b.from, b.bytes)
		b.bytes += int64(len(part))
	}
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	if b.at >= b.bytes {
		return 0, io.EOF
	}
	for n < len(p) && b.part < len(b.parts) {
		part := b.parts[b.part]
		m := copy(p[n:], part[b.at-b.from[b.part]:])
		n, b.at = n+m, b.at+int64(m)
		if b.at == b.from[b.part]+int64(len(part)) {
			b.part++
		}
	}
	return n, nil
}

// Seek implements [io.Seeker].
func (b *body) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.at
	case io.SeekEnd:
		offset += b.bytes
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d: %w", offset, io.ErrUnexpectedEOF)
	}
	b.at = offset
	b.part = sort.Search(len(b.from), func(i int) bool { return b.from[i] > offset }) - 1
	if offset >= b.bytes {
		b.part = len(b.parts)
	}
	return offset, nil
}
