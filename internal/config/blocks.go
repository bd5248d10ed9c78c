package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Blocks is the capacity of a cache: a number of blocks, or a size. Its text form is a number, or that of [Bytes] with a unit.
type Blocks struct {
	// Bytes is the size if Count is not set, Count the number of blocks.
	Bytes Bytes
	Count int
}

// UnmarshalText parses a number of blocks or a size.
func (b *Blocks) UnmarshalText(text []byte) error {
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		*b = Blocks{Count: n}
		return nil
	}
	*b = Blocks{}
	if err := b.Bytes.UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is neither a number of blocks nor a size such as 2TB", text)
	}
	return nil
}

// Of is the number of whole blocks of blockBytes each; a size that is not 0 has one at least.
func (b Blocks) Of(blockBytes float64) int {
	if b.Bytes == 0 || blockBytes <= 0 {
		return b.Count
	}
	return int(max(1, min(float64(b.Bytes)/blockBytes, math.MaxInt32)))
}

// String is the text form.
func (b Blocks) String() string {
	if b.Bytes == 0 {
		return strconv.Itoa(b.Count)
	}
	return b.Bytes.String()
}
