// Package client is an engine's end of the protocol for engines written in Go. A dead
// or slow daemon costs its callers hits, never an error and never a long wait: what was
// in flight is reported as failed, and the client connects again by itself.
package client

import (
	"errors"
	"log/slog"
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
	// Handoff is for engines that cannot report a failed load: only what is verified and
	// pinned in the daemon's staging memory is offered, and the client copies it.
	Handoff bool
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
	if o.Name == "" {
		o.Name = "kvconn-go"
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = time.Second
	}
	if o.RetryInterval == 0 {
		o.RetryInterval = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
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
