// Package host is the host tier: one arena of page-aligned slots in shared memory for the whole
// daemon, and a read-through cache in it. A slot is a buffer for direct I/O while a record is read
// or written and, once its bytes are verified, a cached copy of the record until the memory is
// needed for something else. Slots in use are pinned and charged to the account of a rank, which
// bounds them, so that one engine cannot starve another.
//
// Ranks load and save through [Cache], and engines that copy for themselves through [Handoffs].
// Below them, a load calls [Account.Acquire], reads into [Slot.Bytes] if the outcome is [Fill],
// calls [Slot.Publish] once the bytes are verified, and [Slot.Release] once they are copied. A save
// calls [Account.ReserveSave], copies, writes, publishes and releases.
package host
