package connector

import "fmt"

// TokenRange is the half-open range [Start, End) of a request's tokens. It is never
// empty: a load of nothing is no load.
type TokenRange struct {
	Start, End int
}

// NewTokenRange checks the ends. Errors wrap [ErrBadRequest].
func NewTokenRange(start, end int) (TokenRange, error) {
	if start < 0 || start >= end {
		return TokenRange{}, fmt.Errorf("%w: token range [%d, %d) is empty or begins before the first token", ErrBadRequest, start, end)
	}
	return TokenRange{Start: start, End: end}, nil
}

// Blocks is the half-open range of blocks that hold the tokens.
func (r TokenRange) Blocks(blockSize int) (first, end int) {
	return r.Start / blockSize, (r.End + blockSize - 1) / blockSize
}

// AlignBlocks pairs the blocks of two lists that begin at different tokens: what one has
// in front of the other is left out, and so is what it has behind. Both starts are
// multiples of blockSize. It returns sub-slices of equal length, which may be empty.
// TensorRT-LLM pairs the lists of sender and receiver in this way (_align_kv_blocks).
func AlignBlocks[S, D any](src []S, srcStart int, dst []D, dstStart, blockSize int) ([]S, []D) {
	origin := max(srcStart, dstStart)
	s := min((origin-srcStart)/blockSize, len(src))
	d := min((origin-dstStart)/blockSize, len(dst))
	n := min(len(src)-s, len(dst)-d)
	return src[s : s+n], dst[d : d+n]
}
