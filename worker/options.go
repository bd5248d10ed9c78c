package worker

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
)

// Options configure a [Worker].
type Options struct {
	// Namespace is the store's number of the engine's namespace, Digest its identity.
	Namespace store.NamespaceID
	Digest    connector.NamespaceDigest
	// Shard is the rank's part of every block.
	Shard  connector.Shard
	Driver gpu.Driver
	// LoadTimeout is the time in which every load ends. Default 10 s: longer than any
	// load that beats prefill, short enough for the client that waits.
	LoadTimeout time.Duration
	// LoadStagingBytes bounds the staging memory for loads. Default 64 MiB: several times
	// what keeps a disk busy (reads stop gaining at about 8 MiB in flight).
	LoadStagingBytes int64
	// SaveStagingBytes bounds the staging memory for saves; what does not fit is
	// dropped. Default 256 MiB: the KV of a few thousand tokens waits for the disk
	// while the engine goes on.
	SaveStagingBytes int64
	Logger           *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.LoadTimeout == 0 {
		o.LoadTimeout = 10 * time.Second
	}
	if o.LoadStagingBytes == 0 {
		o.LoadStagingBytes = 64 << 20
	}
	if o.SaveStagingBytes == 0 {
		o.SaveStagingBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Driver == nil:
		return errors.New("worker: no driver")
	case o.LoadTimeout <= 0:
		return errors.New("worker: load timeout must be positive")
	case o.LoadStagingBytes < 0 || o.SaveStagingBytes < 0:
		return errors.New("worker: negative staging size")
	}
	return nil
}
