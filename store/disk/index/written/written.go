// Package written tells from sequence numbers how recently records were written.
package written

import "math/bits"

// Sequence numbers count up within an opening of the store, whose number is in the bits
// from SeqBits on.
const (
	SeqBits = 40
	// stepBits is the precision with which ticks follow sequence numbers: a step is at
	// most this part of what was written until then.
	stepBits = 8
	// Codes of 24 and of 40 bits with that precision.
	openingCodeBits, counterCodeBits = 13, 14
	// FirstTick is past every tick.
	FirstTick = 1 << (openingCodeBits + counterCodeBits)
)

// Tick is the recency of a record that is known only to have been written. It
// rises with the sequence number. Coarse steps are wanted: within one the ends of chains go
// before their heads.
func Tick(seq uint64) uint32 {
	opening, counter := seq>>SeqBits, seq&(1<<SeqBits-1)
	return coarse(opening)<<counterCodeBits | coarse(counter)
}

// coarse is a monotone code of x: its highest bits and how many follow.
func coarse(x uint64) uint32 {
	rest := max(bits.Len64(x)-(stepBits+1), 0)
	return uint32(rest<<stepBits) + uint32(x>>rest)
}
