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
	// Staged is set by engines that cannot report a failed load.
	Staged bool
}

// Scheduler is the session of an engine's scheduler. Calls of one session never
// overlap. Errors that wrap one of connector's sentinels reach the client as such.
type Scheduler interface {
	// Match must not keep m nor what it refers to.
	Match(ctx context.Context, m *connector.MatchRequest) (connector.Offer, error)
	Step(ctx context.Context, m *connector.StepRequest) (connector.StepReply, error)
	Loaded(ctx context.Context, m *connector.LoadedReport) error
	// Reset forgets what the leader knows of the engine's own cache.
	Reset(ctx context.Context) error
	// Close ends the session: the connection is gone.
	Close()
}

// Registration is what a worker needs to reach engine memory.
type Registration struct {
	Layout connector.Layout
	// Regions are the descriptors that the layout's runs name, Fence that of the fence
	// page (see package fence).
	Regions []*os.File
	Fence   *os.File
}

// Registered is the answer to a registration.
type Registered struct {
	// BlockBytes is the payload size of a block of each layer group.
	BlockBytes []int
	// Staging is the staging memory, for engines that copy staged blocks themselves; nil
	// for others. It stays the session's.
	Staging *os.File
}

// Worker is the session of one rank's worker. Calls of one session never overlap.
type Worker interface {
	// Register takes over the descriptors, also where it fails.
	Register(ctx context.Context, r *Registration) (Registered, error)
	// Unregister gives engine memory back: when it returns, it is no longer touched.
	Unregister(ctx context.Context) error
	Load(ctx context.Context, metadata []byte) (int, error)
	Save(ctx context.Context, metadata []byte) (connector.SaveResult, error)
	Poll(ctx context.Context) ([]connector.FinishedLoad, error)
	// Cancel ends a request's load without a report: when it returns, nothing is written
	// to its blocks any more.
	Cancel(ctx context.Context, request string) error
	// Present, Fetch and Put are presence, load and save by the engine's own keys. They
	// must not keep k.
	Present(ctx context.Context, k *connector.KeyedBlocks) (int, error)
	Fetch(ctx context.Context, request string, k *connector.KeyedBlocks) error
	Put(ctx context.Context, k *connector.KeyedBlocks) (connector.SaveResult, error)
	// Close ends the session. When it returns, engine memory is no longer touched.
	Close()
}

// Backend opens sessions.
type Backend interface {
	OpenScheduler(ctx context.Context, p Peer, m *connector.Manifest) (Scheduler, error)
	OpenWorker(ctx context.Context, p Peer, m *connector.Manifest, rank int) (Worker, error)
}
