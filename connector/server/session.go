// Package server is the daemon's end of the protocol: it listens on the Unix socket,
// checks who connects, and turns frames into calls on the session that a [Backend]
// opened for the connection.
package server

import (
	"context"
	"os"

	"github.com/kvconn/kvconn/connector"
)

// Peer is the other end of a connection.
type Peer struct {
	// PID is the peer's process id at the time it connected.
	PID int
	// Client is the client's name and version, Engine its engine instance.
	Client, Engine string
	// Gone reports whether the peer has hung up: it has closed its end, or the half that
	// it sends on. A client that gives a call up hangs up before its engine goes on, so
	// that what the call was copying meanwhile can be told from what it was meant to.
	Gone func() bool
}

// Scheduler is the session of an engine's scheduler. Calls of one session never
// overlap. Errors that wrap one of connector's sentinels reach the client as such.
type Scheduler interface {
	Match(ctx context.Context, m *connector.MatchRequest) (connector.Offer, error)
	Step(ctx context.Context, m *connector.StepRequest) (connector.StepReply, error)
	Loaded(ctx context.Context, m *connector.LoadedReport) error
	// Close ends the session: the connection is gone.
	Close()
}

// Worker is the session of one rank's worker. Calls of one session never overlap.
type Worker interface {
	// Register takes over regions, also where it fails. It returns the bytes of a block.
	Register(ctx context.Context, l *connector.Layout, regions []*os.File) (int, error)
	Load(ctx context.Context, metadata []byte) (int, error)
	Save(ctx context.Context, metadata []byte) (connector.SaveResult, error)
	Poll(ctx context.Context) ([]connector.FinishedLoad, error)
	// Close ends the session. When it returns, engine memory is no longer touched.
	Close()
}

// Backend opens sessions.
type Backend interface {
	OpenScheduler(ctx context.Context, p Peer, m *connector.Manifest) (Scheduler, error)
	OpenWorker(ctx context.Context, p Peer, m *connector.Manifest, shard connector.Shard) (Worker, error)
}
