package feed

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/blocksize"
)

// RankOptions configure a [Rank].
type RankOptions struct {
	// Endpoint is the publisher of the engine's rank 0, tcp://host:port or ipc://path.
	Endpoint string
	// ReplayEndpoint is rank 0's replay server; empty if the engine has none: then every lost batch
	// costs what is known of the rank.
	ReplayEndpoint string
	// Number is the data-parallel rank to follow. It is added to the endpoints' ports.
	Number int
	// Bind waits for the engine to connect to Endpoint, which is then an address of this machine.
	Bind bool
	// Topic is what to subscribe to. Default: everything.
	Topic string
	// Holder is the rank's GPU cache.
	Holder Holder
	// Scheme is how the keys of the rank's blocks are made, BlockSize knows the number of tokens in one. It is told what the
	// engine says; ID names the rank there.
	Scheme    blockkey.Scheme
	BlockSize *blocksize.Size
	ID        int32
	// QueueBatches and QueueBytes bound what waits between the socket and the index. Defaults 4,096 batches
	// and 64 MiB: seconds of a busy engine.
	QueueBatches int
	QueueBytes   int64
	// UnknownParentsMax is after how many events with unknown parents the rank is rebuilt. Default 64: many
	// mean that the view is wrong.
	UnknownParentsMax int
	// ReconnectMin and ReconnectMax are the waits between attempts to connect, doubling from one to the
	// other. Defaults 100 ms and 5 s.
	ReconnectMin, ReconnectMax time.Duration
	// RecoverInterval is the shortest time between two replays, which cost the engine time. Default 1 s.
	// Rebuilds for bad events back off from there to [maxRebuildInterval].
	RecoverInterval time.Duration
	// ReplayMax is how long one replay may take, in which nothing else is applied. Default 2 min.
	ReplayMax time.Duration
	// VoteGrace is how long after its connection is lost the engine's word on the block size still counts among engines that
	// differ. Default 10 s: another size costs a replay of every rank, which a moment without a connection is not worth.
	VoteGrace time.Duration
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *RankOptions) EnsureDefaults() {
	o.QueueBatches = cmp.Or(o.QueueBatches, 4096)
	o.QueueBytes = cmp.Or(o.QueueBytes, 64<<20)
	o.UnknownParentsMax = cmp.Or(o.UnknownParentsMax, 64)
	o.ReconnectMin = cmp.Or(o.ReconnectMin, 100*time.Millisecond)
	o.ReconnectMax = cmp.Or(o.ReconnectMax, 5*time.Second)
	o.RecoverInterval = cmp.Or(o.RecoverInterval, time.Second)
	o.ReplayMax = cmp.Or(o.ReplayMax, 2*time.Minute)
	o.VoteGrace = cmp.Or(o.VoteGrace, 10*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first option that cannot be used.
func (o *RankOptions) Validate() error {
	switch {
	case o.QueueBatches < 1 || o.QueueBatches > 1<<20 || o.QueueBytes < 1 || o.UnknownParentsMax < 1:
		return errors.New("feed: queue bounds must be positive, at most 1 Mi batches")
	case o.ReconnectMin < 0 || o.ReconnectMax < o.ReconnectMin || o.RecoverInterval < 0 || o.ReplayMax < 0 || o.VoteGrace < 0:
		return errors.New("feed: intervals must not be negative, ReconnectMax not less than ReconnectMin")
	}
	if _, _, err := o.endpoints(); err != nil {
		return err
	}
	return checkBlockSize(o.BlockSize)
}

func (o *RankOptions) endpoints() (events, replay string, err error) {
	if events, err = zmtp.Offset(o.Endpoint, o.Number); err == nil && o.ReplayEndpoint != "" {
		replay, err = zmtp.Offset(o.ReplayEndpoint, o.Number)
	}
	if err != nil {
		return "", "", fmt.Errorf("feed: rank %d: %w", o.Number, err)
	}
	return events, replay, nil
}

// State says what a rank's or a store's view is worth.
type State string

// The states of a feed.
const (
	// StateConnecting: there is no connection, not yet or not any more.
	StateConnecting State = "connecting"
	// StateSynced: the view is complete.
	StateSynced State = "synced"
	// StatePartial: what the view has is true and nothing has been missed since, but there may be more from before: the
	// engine does not replay, or no longer from its start.
	StatePartial State = "partial"
	// StateStale: events are missing, and are asked for; Error says why.
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
