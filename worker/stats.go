package worker

import (
	"sync/atomic"
	"time"
)

// Stats counts a worker's transfers since its start.
type Stats struct {
	// Loads ended, LoadsFailed of them with a failed block at least, LoadsCancelled were
	// not reported; LoadsInFlight are running now.
	Loads          uint64 `json:"loads"`
	LoadsFailed    uint64 `json:"loads_failed"`
	LoadsCancelled uint64 `json:"loads_cancelled"`
	LoadsInFlight  int    `json:"loads_in_flight"`
	// LoadedBlocks and LoadedBytes reached engine memory; FailedBlocks did not.
	LoadedBlocks uint64 `json:"loaded_blocks"`
	LoadedBytes  uint64 `json:"loaded_bytes"`
	FailedBlocks uint64 `json:"failed_blocks"`
	// LoadSeconds adds up the time that loads took, CopySeconds that of their copies into
	// engine memory.
	LoadSeconds float64 `json:"load_seconds"`
	CopySeconds float64 `json:"copy_seconds"`
	// SavedBlocks and SavedBytes were taken over by the store; DroppedBlocks found no
	// room, or the store failed to write them.
	SavedBlocks   uint64 `json:"saved_blocks"`
	SavedBytes    uint64 `json:"saved_bytes"`
	DroppedBlocks uint64 `json:"dropped_blocks"`
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
