package worker

import (
	"sync/atomic"
	"time"
)

// Stats counts a worker's transfers since its start. The tags are those of package counters.
type Stats struct {
	Loads          uint64  `json:"loads" metric:"loads_total" help:"Loads ended, by rank."`
	LoadsFailed    uint64  `json:"loads_failed" metric:"loads_failed_total" help:"Loads with a failed block at least, by rank."`
	LoadsCancelled uint64  `json:"loads_cancelled" metric:"loads_cancelled_total" help:"Loads that the engine took back, by rank."`
	LoadsInFlight  int     `json:"loads_in_flight" metric:"loads_in_flight" help:"Loads running."`
	LoadedBlocks   uint64  `json:"loaded_blocks" metric:"loaded_blocks_total" help:"Blocks that reached engine memory."`
	LoadedBytes    uint64  `json:"loaded_bytes" metric:"loaded_bytes_total" help:"Bytes that reached engine memory."`
	FailedBlocks   uint64  `json:"failed_blocks" metric:"failed_blocks_total" help:"Blocks of loads that failed."`
	LoadSeconds    float64 `json:"load_seconds" metric:"load_seconds_total" help:"Time that loads took, added up over ranks."`
	CopySeconds    float64 `json:"copy_seconds" metric:"load_copy_seconds_total" help:"Time of that spent copying into engine memory."`
	SavedBlocks    uint64  `json:"saved_blocks" metric:"saved_blocks_total" help:"Blocks taken over by the store."`
	SavedBytes     uint64  `json:"saved_bytes" metric:"saved_bytes_total" help:"Bytes taken over by the store."`
	DroppedBlocks  uint64  `json:"dropped_blocks" metric:"dropped_blocks_total" help:"Blocks not saved for want of room or because a write failed."`
}

type counters struct {
	loads, loadsFailed, loadsCancelled, loadNanos, copyNanos atomic.Uint64
	loadedBlocks, loadedBytes, failedBlocks                  atomic.Uint64
	savedBlocks, savedBytes, droppedBlocks                   atomic.Uint64
}

// Stats returns the counters.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	inFlight := len(w.loads.running)
	w.mu.Unlock()
	c := &w.counters
	return Stats{
		Loads: c.loads.Load(), LoadsFailed: c.loadsFailed.Load(), LoadsCancelled: c.loadsCancelled.Load(), LoadsInFlight: inFlight,
		LoadedBlocks: c.loadedBlocks.Load(), LoadedBytes: c.loadedBytes.Load(), FailedBlocks: c.failedBlocks.Load(),
		LoadSeconds: time.Duration(c.loadNanos.Load()).Seconds(), CopySeconds: time.Duration(c.copyNanos.Load()).Seconds(),
		SavedBlocks: c.savedBlocks.Load(), SavedBytes: c.savedBytes.Load(), DroppedBlocks: c.droppedBlocks.Load(),
	}
}
