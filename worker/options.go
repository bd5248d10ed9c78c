package worker

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
)

// Options configure a [Worker].
type Options struct {
	// Namespace is the engine's, Manifest its description.
	Namespace connector.NamespaceDigest
	Manifest  *connector.Manifest
	// Rank is the worker's place in the manifest's rank grid.
	Rank   int
	Driver gpu.Driver
	// Cache is what the worker reads and writes records through. Its tier is asked whether
	// blocks of a size can be saved and loaded before memory with such blocks is taken, and
	// keeps others out while it is held.
	Cache *host.Cache
	// Account is the rank's share of the cache's memory. The worker closes it.
	Account *host.Account
	// LoadTimeout is the time in which every load ends, and what a save waits for its
	// engine's device at most; each read of a record has a deadline of its tier's besides.
	// Default 10 s: longer than any load that beats prefill, short
	// enough for the client that waits.
	LoadTimeout time.Duration
	// Lost, if not nil, is called, from any goroutine, when a copy has found the registered
	// memory gone: nothing can be loaded until memory is registered again. It must not call
	// the worker.
	Lost func()
	// Logger receives what an operator should know. Default: nothing.
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.LoadTimeout = cmp.Or(o.LoadTimeout, 10*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Driver == nil:
		return errors.New("worker: no driver")
	case o.Cache == nil:
		return errors.New("worker: no cache")
	case o.Account == nil:
		return errors.New("worker: no account at the host tier")
	case o.Manifest == nil:
		return errors.New("worker: no manifest")
	case o.Rank < 0 || o.Rank >= o.Manifest.Ranks():
		return errors.New("worker: rank outside of the manifest's grid")
	case o.LoadTimeout <= 0:
		return errors.New("worker: load timeout must be positive")
	}
	return nil
}
