package feed

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
)

// Rank is one data-parallel rank of an engine.
type Rank struct {
	// Number is added to the endpoints' ports.
	Number int
	// Holder is the rank's GPU cache; Offload, if HasOffload, is what it keeps in host memory or on disk
	// by itself.
	Holder     Holder
	Offload    Holder
	HasOffload bool
}

// EngineOptions configure an [Engine].
type EngineOptions struct {
	// Endpoint is rank 0's publisher, tcp://host:port or ipc://path.
	Endpoint string
	// ReplayEndpoint is rank 0's replay server; empty if the engine has none: then every lost batch
	// costs what is known of the rank.
	ReplayEndpoint string
	// Bind waits for the engine to connect to Endpoint, which is then an address of this machine.
	Bind bool
	// Topic is what to subscribe to. Default: everything.
	Topic string
	// Ranks are the ranks to follow.
	Ranks []Rank
	// BlockSize is the router's number of tokens in a block.
	BlockSize int
	// LoRAName is as in [IngestOptions].
	LoRAName func(id int64) string
	// QueueBatches and QueueBytes bound what waits between the socket and the index, per rank. Defaults
	// 4,096 batches and 64 MiB: seconds of a busy engine.
	QueueBatches int
	QueueBytes   int64
	// UnknownParentsMax is after how many events with unknown parents a rank is rebuilt. Default 64: a
	// few may come from an offload tier, many mean that the view is wrong.
	UnknownParentsMax int
	// ReconnectMin and ReconnectMax are the waits between attempts to connect, doubling from one to the
	// other. Defaults 100 ms and 5 s.
	ReconnectMin, ReconnectMax time.Duration
	// RecoverInterval is the shortest time between two replays, which cost the engine time. Default 1 s.
	// Rebuilding for bad events backs off from there to [maxRebuildInterval].
	RecoverInterval time.Duration
	// ReplayTimeout bounds the wait for each message of a replay. Default 5 s.
	ReplayTimeout time.Duration
	// Limits bound a batch, Conn a connection.
	Limits event.Limits
	Conn   zmtp.ConnOptions
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// maxRebuildInterval is how rarely a rank is rebuilt whose events keep being bad.
const maxRebuildInterval = time.Minute

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// EnsureDefaults fills in what is not set.
func (o *EngineOptions) EnsureDefaults() {
	setDefault(&o.QueueBatches, 4096)
	setDefault(&o.QueueBytes, 64<<20)
	setDefault(&o.UnknownParentsMax, 64)
	setDefault(&o.ReconnectMin, 100*time.Millisecond)
	setDefault(&o.ReconnectMax, 5*time.Second)
	setDefault(&o.RecoverInterval, time.Second)
	setDefault(&o.ReplayTimeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Limits.EnsureDefaults()
	o.Conn.EnsureDefaults()
}

// Validate reports the first option that cannot be used.
func (o *EngineOptions) Validate() error {
	switch {
	case len(o.Ranks) == 0:
		return errors.New("feed: no ranks to follow")
	case o.QueueBatches < 1 || o.QueueBatches > 1<<20 || o.QueueBytes < 1 || o.UnknownParentsMax < 1:
		return errors.New("feed: queue bounds must be positive, at most 1 Mi batches")
	case o.ReconnectMin < 0 || o.ReconnectMax < o.ReconnectMin || o.RecoverInterval < 0 || o.ReplayTimeout < 0:
		return errors.New("feed: intervals must not be negative, ReconnectMax not less than ReconnectMin")
	}
	for _, r := range o.Ranks {
		for _, endpoint := range [...]string{o.Endpoint, o.ReplayEndpoint} {
			if endpoint == "" && o.Endpoint != "" {
				continue
			}
			if _, err := zmtp.Offset(endpoint, r.Number); err != nil {
				return fmt.Errorf("feed: rank %d: %w", r.Number, err)
			}
		}
		in := IngestOptions{BlockSize: o.BlockSize, Holder: r.Holder, Offload: r.Offload, HasOffload: r.HasOffload}
		if err := in.Validate(); err != nil {
			return err
		}
	}
	return o.Conn.Validate()
}
