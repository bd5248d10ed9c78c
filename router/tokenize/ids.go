package tokenize

import (
	"errors"
	"fmt"
	"math"
)

var (
	// ErrIDs says that a JSON value is not a list of token ids.
	ErrIDs = errors.New("not a list of token ids")
	// ErrTooLong says that a prompt has more tokens than are taken in.
	ErrTooLong = errors.New("the prompt is too long")
)

// AppendIDs appends the token ids of a JSON array of integers to dst. No more than limit are taken in: a
// longer list is [ErrTooLong], any other value [ErrIDs]. It allocates only what dst grows by, and is several
// times as fast as package encoding/json.
func AppendIDs(dst []uint32, data []byte, limit int) ([]uint32, error) {
	p := idParser{data: data}
	if !p.take('[') {
		return dst, ErrIDs
	}
	if p.take(']') {
		return dst, p.end()
	}
	for n := 0; ; n++ {
		if n == limit {
			return dst, fmt.Errorf("%w: more than %d tokens", ErrTooLong, limit)
		}
		id, ok := p.number()
		if !ok {
			return dst, fmt.Errorf("%w: at byte %d", ErrIDs, p.at)
		}
		dst = append(dst, id)
		if !p.take(',') {
			break
		}
	}
	if !p.take(']') {
		return dst, fmt.Errorf("%w: at byte %d", ErrIDs, p.at)
	}
	return dst, p.end()
}

// idParser reads a JSON array.
type idParser struct {
	data []byte
	at   int
}

func (p *idParser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// take reads one character, if it is next.
func (p *idParser) take(c byte) bool {
	p.space()
	if p.at < len(p.data) && p.data[p.at] == c {
		p.at++
		return true
	}
	return false
}

// number reads an integer of 0 to 2^32-1.
func (p *idParser) number() (uint32, bool) {
	p.space()
	start, v := p.at, uint64(0)
	for p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
		v = v*10 + uint64(p.data[p.at]-'0')
		if v > math.MaxUint32 {
			return 0, false
		}
		p.at++
	}
	digits := p.at - start
	return uint32(v), digits > 0 && (digits == 1 || p.data[start] != '0')
}

// end wants nothing more.
func (p *idParser) end() error {
	if p.space(); p.at != len(p.data) {
		return fmt.Errorf("%w: something follows at byte %d", ErrIDs, p.at)
	}
	return nil
}
