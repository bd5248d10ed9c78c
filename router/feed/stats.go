package feed

// State says what a rank's or a store's view is worth.
type State string

// The states of a feed.
const (
	// StateConnecting: there is no connection, not yet or not any more.
	StateConnecting State = "connecting"
	// StateSynced: the view is complete.
	StateSynced State = "synced"
	// StateStale: events are missing; there may be more than is known.
	StateStale State = "stale"
	// StateRefused: what the source publishes cannot be used; Error says why.
	StateRefused State = "refused"
)

// RankStats are the state and the counters of one rank's feed.
type RankStats struct {
	Rank      int    `json:"rank"`
	Endpoint  string `json:"endpoint"`
	State     State  `json:"state"`
	Connected bool   `json:"connected"`
	// Error is why something does not work, empty if all is well.
	Error string `json:"error,omitempty"`
	// LastSeq is the number of the last batch applied, -1 if there is none.
	LastSeq int64 `json:"last_seq"`
	// EngineRank is the rank named in the engine's batches, -1 if there is none.
	EngineRank int `json:"engine_rank"`
	// Connects counts connections.
	Connects uint64 `json:"connects"`
	// Gaps are gaps in the numbers, Restarts are numbers that began again, Duplicates batches that had been
	// applied already.
	Gaps       uint64 `json:"gaps"`
	Restarts   uint64 `json:"restarts"`
	Duplicates uint64 `json:"duplicates"`
	// Replays succeeded, ReplayFailures failed; ReplayedBatches is what they brought.
	Replays         uint64 `json:"replays"`
	ReplayFailures  uint64 `json:"replay_failures"`
	ReplayedBatches uint64 `json:"replayed_batches"`
	// Resyncs is how often the rank was cleared because its view could be wrong.
	Resyncs uint64 `json:"resyncs"`
	// Overflows are batches dropped because the index did not keep up.
	Overflows uint64 `json:"overflows"`
	// BadFrames are messages that are not [topic, number, payload].
	BadFrames uint64 `json:"bad_frames"`
	IngestStats
}
