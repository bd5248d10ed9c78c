// Package recency is how recently a record was used, in half a word of its entry in the index, and how many hold
// it, in the other half.
package recency

import "sync/atomic"

// Use is the tick of a record's last use (high 32 bits, the low ones of the clock) and the number of its pins (low 32
// bits). Its methods may be called from any goroutine, under the index's lock for reading.
type Use uint64

const (
	tickShift = 32
	pinMask   = 1<<tickShift - 1
	// MaxAge is the greatest age that an entry is given: one that was not used for longer looks as if it were of that age.
	MaxAge = 1 << 30
	// inFlight bounds by how many ticks a use may be noted late, or an age be read early.
	inFlight = 1 << 28
)

// At is a use at a tick, of a record with that many pins.
func At(tick, pins uint32) Use { return Use(tick)<<tickShift | Use(pins) }

// Tick is the tick of the last use.
func (u *Use) Tick() uint32 { return uint32(u.load() >> tickShift) }

// Pins is how many hold the record.
func (u *Use) Pins() uint32 { return uint32(u.load()) }

// Pin holds the record.
func (u *Use) Pin() { atomic.AddUint64((*uint64)(u), 1) }

// Unpin ends one Pin.
func (u *Use) Unpin() { atomic.AddUint64((*uint64)(u), ^uint64(0)) }

// Set sets bits among those of the pins, which no count of them reaches, Clear takes them away.
func (u *Use) Set(bits uint32)   { atomic.OrUint64((*uint64)(u), uint64(bits)) }
func (u *Use) Clear(bits uint32) { atomic.AndUint64((*uint64)(u), ^uint64(bits)) }

func (u *Use) load() uint64 { return atomic.LoadUint64((*uint64)(u)) }

func (u *Use) swap(old, next uint64) bool {
	return atomic.CompareAndSwapUint64((*uint64)(u), old, next)
}

// Touch notes a use at a tick that is about now, and adds pins.
func (u *Use) Touch(tick uint32, pins uint64) {
	for {
		old := u.load()
		next := uint64(tick)<<tickShift | (old&pinMask + pins)
		if uint32(old>>tickShift)-tick < inFlight { // another use was later
			next = old + pins
		}
		if old == next || u.swap(old, next) {
			return
		}
	}
}

// LimitAge makes the record at most [MaxAge] old.
func (u *Use) LimitAge(now uint32) {
	for {
		old := u.load()
		tick := uint32(old >> tickShift)
		if now+inFlight-tick <= MaxAge+inFlight || u.swap(old, uint64(now-MaxAge)<<tickShift|old&pinMask) {
			return
		}
	}
}

// Raise makes a record as recent as a tick; it reports false if it was already.
func (u *Use) Raise(tick uint32, clock uint64) bool {
	for {
		old := u.load()
		if Full(uint32(old>>tickShift), clock) >= Full(tick, clock) {
			return false
		}
		if u.swap(old, uint64(tick)<<tickShift|old&pinMask) {
			return true
		}
	}
}

// Full is the 64-bit tick whose low half an entry keeps.
func Full(tick uint32, clock uint64) uint64 {
	ahead := clock + inFlight // a use may be noted after the clock is read
	return ahead - uint64(uint32(ahead)-tick)
}
