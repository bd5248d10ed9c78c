package feed

// State says how far a rank's or a store's view can be trusted.
type State string

// The states of a feed.
const (
	// StateConnecting: nothing was heard yet, or the connection is lost.
	StateConnecting State = "connecting"
	// StateSynced: the view is complete.
	StateSynced State = "synced"
	// StateStale: events were missed; there may be more than what is known.
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
	// Error is the last reason why something does not work, empty if all is well.
	Error string `json:"error,omitempty"`
	// LastSeq is the number of the last batch applied, -1 if there is none.
	LastSeq int64 `json:"last_seq"`
	// EngineRank is the rank that the engine names in its batches, -1 if none.
	EngineRank int `json:"engine_rank"`
	// Connects counts connections.
	Connects uint64 `json:"connects"`
	// Gaps are missing stretches of numbers, Restarts numbers that began anew, Duplicates batches that
	// had been applied already.
	Gaps       uint64 `json:"gaps"`
	Restarts   uint64 `json:"restarts"`
	Duplicates uint64 `json:"duplicates"`
	// Replays are replays that closed the gap, ReplayFailures those that did not, ReplayedBatches what
	// they brought.
	Replays         uint64 `json:"replays"`
	ReplayFailures  uint64 `json:"replay_failures"`
	ReplayedBatches uint64 `json:"replayed_batches"`
	// Resyncs are the times that the rank was cleared because what was known could be wrong.
	Resyncs uint64 `json:"resyncs"`
	// Overflows are batches dropped because the index did not keep up.
	Overflows uint64 `json:"overflows"`
	// BadFrames are messages that are not [topic, number, payload].
	BadFrames uint64 `json:"bad_frames"`
	IngestStats
}
