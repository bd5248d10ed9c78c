package worker

import "sync/atomic"

// Stats counts a worker's transfers since its start.
type Stats struct {
	// Loads ended, LoadsFailed of them with a failed block at least; LoadsInFlight are
	// running now.
	Loads         uint64 `json:"loads"`
	LoadsFailed   uint64 `json:"loads_failed"`
	LoadsInFlight int    `json:"loads_in_flight"`
	// LoadedBlocks and LoadedBytes reached engine memory; FailedBlocks did not.
	LoadedBlocks uint64 `json:"loaded_blocks"`
	LoadedBytes  uint64 `json:"loaded_bytes"`
	FailedBlocks uint64 `json:"failed_blocks"`
	// LoadSeconds adds up the time that loads took.
	LoadSeconds float64 `json:"load_seconds"`
	// SavedBlocks and SavedBytes were taken over by the store; DroppedBlocks found no
	// room, or the store failed to write them.
	SavedBlocks   uint64 `json:"saved_blocks"`
	SavedBytes    uint64 `json:"saved_bytes"`
	DroppedBlocks uint64 `json:"dropped_blocks"`
}

type counters struct {
	loads, loadsFailed, loadNanos           atomic.Uint64
	loadedBlocks, loadedBytes, failedBlocks atomic.Uint64
	savedBlocks, savedBytes, droppedBlocks  atomic.Uint64
}
