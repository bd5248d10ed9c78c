// Package client is an engine's end of the protocol for engines written in Go. A dead
// or slow daemon costs its callers hits, never an error and never a long wait: what was
// in flight is reported as failed, and the client connects again by itself.
package client

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Options configure a [Scheduler] or a [Worker].
type Options struct {
	// Socket is the path of the daemon's Unix socket.
	Socket string
	// Engine is the id of the engine instance, the same for its scheduler and workers.
	Engine string
	// Name is the client's name and version, for the daemon's logs.
	Name string
	// Manifest is the engine's namespace.
	Manifest connector.Manifest
	// Handoff says at hello that the engine cannot report a failed load, so that it is offered
	// only what is verified and pinned in the daemon's host tier. The engine then copies that
	// itself: what follows from it is the caller's (docs/protocol.md, Handoff mode).
	Handoff bool
	// HostTier, with Handoff, is given the host tier's memory of each daemon that a worker
	// registers with, which may be named by plans for as long as keep after that daemon's
	// end. The file is closed after the call. An error fails the registration.
	HostTier func(f *os.File, keep time.Duration) error `json:"-"`
	// Regions, if set, describes the memory for each registration, in place of the files that a worker was made with:
	// device memory whose descriptors are sent once each. What it returned before may be closed.
	Regions func() ([]*os.File, error) `json:"-"`
	// CallTimeout bounds each call. Default 1 s: calls take microseconds, and an engine
	// that waits longer than this for a cache is better off without.
	CallTimeout time.Duration
	// RetryInterval is the least time between two attempts to connect. Default 1 s: an
	// attempt is cheap, but it must not be made in every engine step.
	RetryInterval time.Duration
	Logger        *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Name = cmp.Or(o.Name, "kvconn-go")
	o.CallTimeout = cmp.Or(o.CallTimeout, time.Second)
	o.RetryInterval = cmp.Or(o.RetryInterval, time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Socket == "":
		return errors.New("client: socket is empty")
	case o.Engine == "":
		return errors.New("client: engine id is empty")
	case o.CallTimeout < 0 || o.RetryInterval < 0:
		return errors.New("client: negative timeout")
	}
	return o.Manifest.Validate()
}
