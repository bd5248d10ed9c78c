// Package host is the host tier: one arena of page-aligned slots in shared memory for the
// whole daemon. A slot is a buffer for direct I/O while a record is read or written and,
// once its bytes are verified, a cached copy of the record until the memory is needed for
// something else. Slots in use are pinned and accounted to a rank; what they may hold is
// bounded for each rank, so that one engine cannot starve another.
//
// A [Slot] is a handle in the caller's memory. The way of a load is [Account.Acquire],
// a read into [Slot.Bytes] if the outcome is [Fill], [Slot.Publish] once the store has
// verified the bytes, and [Slot.Release] when they are copied. The way of a save is
// [Account.ReserveSave], a copy, a write, [Slot.Publish] and [Slot.Release].
package host
