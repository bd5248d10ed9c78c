package disk

import "sync/atomic"

// counters are the running totals behind [Stats].
type counters struct {
	lookups, lookupBlocks, hitBlocks              atomic.Uint64
	reads, readBytes, gone, mismatched            atomic.Uint64
	readErrors, readTimeouts, corrupt             atomic.Uint64
	writes, writeBytes, same, writeErrors, denied atomic.Uint64
	evicted, barriers, barrierErrors              atomic.Uint64
	scrubs, scrubBytes, unreadable                atomic.Uint64
}
