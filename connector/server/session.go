// Package server is the daemon's end of the protocol: it listens on the Unix socket,
// checks who connects, and turns frames into calls on the session that a [Backend]
// opened for the connection.
package server

import (
	"context"
	"log/slog"
	"os"

	"github.com/kvconn/kvconn/connector"
)

// Peer is the other end of a connection.
type Peer struct {
	// PID is the peer's process id at the time it connected, 0 where it lives in another PID namespace.
	PID int
	// Client is the client's name and version, Engine its engine instance.
	Client, Engine string
	// Handoff is set by engines that cannot report a failed load (handoff mode).
	Handoff bool
	// HangUp ends the connection from the daemon's side. The client connects again, and a worker registers its
	// memory again. It may be called from any goroutine, any number of times.
	HangUp func()
	// Connection returns a duplicate of the connection's socket, which is the caller's. While one is open the client does
	// not see the connection end where this process dies; where the session ends in order it does. It may be called from
	// any goroutine.
	Connection func() (*os.File, error)
}

// Process is the peer's process for a line of the log: nothing where the daemon cannot see it. The client's name says
// what the process calls itself.
func (p *Peer) Process() slog.Attr {
	if p.PID == 0 {
		return slog.Attr{}
	}
	return slog.Int("pid", p.PID)
}

// Scheduler is the session of an engine's scheduler. Calls of one session never overlap,
// and come in this order:
//
//   - Match, any number of times for a request: engines ask again when an allocation fails
//     after a hit (vLLM), and once more for each allocation of a resumed request. Only
//     what a later Alloc says counts.
//   - Step once for each engine step in which anything was allocated, scheduled, preempted
//     or finished, also where nothing is computed. Decodes that fill no block may be left
//     out, and told together with the one that does. Within a step the parts count in the
//     order of [connector.StepRequest]: allocations, scheduled, preempted, finished. An
//     Alloc follows a Match of the same request; its External is what was offered, less
//     where the engine takes a part (TensorRT-LLM's cancel_load trims the head or tail),
//     or 0. While a load runs beside the steps (Offer.Async) its request is not in
//     Scheduled; after the report TensorRT-LLM shows the request as new, with the loaded
//     tokens as computed, so the leader keeps its own offsets.
//   - Several steps may have been planned before the workers have run the first. A block
//     is saved by the plan of the step that fills it, or a later one, never before.
//   - Decode blocks come with requests that are scheduled again, not with new ones.
//   - A preempted request comes back with Match, at the same or another length, and then
//     with Reset set in Scheduled; or it finishes without having come back.
//   - Finished may name requests that the leader never heard of, and name one in the step
//     that computes it last: its blocks of that step are still saved.
//   - Loaded, once all ranks have reported a load. One rank's failed block fails the block
//     for all. A load is reported after the Step that planned it, possibly many steps
//     later, possibly after Finished (an abort during a load).
//
// An error answers one call, and the session goes on. Errors that wrap one of connector's
// sentinels reach the client as such. After Close no other method is called.
type Scheduler interface {
	// Match says how many tokens can be loaded after m.Computed. It is free of side
	// effects that the engine could see. It must not keep m nor anything that m refers to,
	// strings included: they are views of the connection's memory.
	Match(ctx context.Context, m *connector.MatchRequest) (connector.Offer, error)
	// Step plans what the workers do in an engine step. It may keep the strings in m, but
	// neither m nor its slices. The reply is encoded before the next call.
	Step(ctx context.Context, m *connector.StepRequest) (connector.StepReply, error)
	// Loaded takes what came of loads, all ranks together. It may keep m.
	Loaded(ctx context.Context, m *connector.LoadedReport) error
	// Reset forgets what the leader knows of the engine's own cache, which the engine has
	// dropped (vLLM's reset_cache, TensorRT-LLM's request_reset for each request).
	Reset(ctx context.Context) error
	// Close ends the session: the connection is gone, or the engine's process is. What its
	// requests had pinned is released.
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
	// HostTier is the memory of the host tier, for engines in handoff mode; nil for others. It
	// is sealed against shrinking (F_SEAL_SHRINK), and stays the session's.
	HostTier *os.File
}

// Worker is the session of one rank's worker. Calls of one session never overlap, so that
// none may wait for a load or a disk; those of an engine that brings its own keys are the
// exception, see below. They come in this order:
//
//   - Register before anything else but Present; again at any time, for other memory.
//   - In each engine step Load before the forward pass, and Save with the same metadata
//     after it (vLLM: start_load_kv and wait_for_save; its newest releases start loads
//     after the forward pass if no request waits for one). Either is left out where the
//     metadata has nothing for it. With several steps in flight the order of Load and Save
//     of different steps is not fixed.
//   - Poll at the end of steps with loads in flight, also of those without a forward pass.
//   - Cancel, for a request that the engine has dropped. Its load may have ended and been
//     reported.
//   - Unregister, and then Register or Close.
//
// An engine that brings its own keys calls Present while a request waits, Fetch for what it takes,
// Put for what it has computed, and Touch once the request has ended. Such a session may have
// several connections: these calls, FetchWait, PutWait and Cancel may then overlap each other
// and all other calls but Close. FetchWait and PutWait wait, all others still return at once.
//
// In handoff mode Load is not called: the client copies from [Registered].HostTier.
//
// Before each copy to or from engine memory a session counts itself into the fence page,
// and out after it (see package fence). The client relies on it to go on without an answer.
type Worker interface {
	// Register takes over the descriptors, also where it fails. What was registered before
	// is given back first, as by Unregister.
	Register(ctx context.Context, r *Registration) (Registered, error)
	// Unregister gives engine memory back: when it returns, it is no longer touched. Loads
	// in flight end without a report.
	Unregister(ctx context.Context) error
	// Load starts the loads of a plan, and returns their number. Each ends within the load
	// timeout and is reported by Poll exactly once, also one that has nothing to do on this
	// rank. An error means that nothing was started. metadata is valid during the call.
	Load(ctx context.Context, metadata []byte) (int, error)
	// Save copies the blocks of a plan out of engine memory, and returns when the engine
	// may overwrite them. An error means that nothing was taken. Where the page is fenced
	// once the copy has ended, what was copied is dropped.
	Save(ctx context.Context, metadata []byte) (connector.SaveResult, error)
	// SaveLater notes the save of a plan and returns, like Put, where the registered memory is that of a
	// device. For other memory it returns false and has done nothing. An error means that nothing was
	// noted. It keeps nothing of m. What the fence page revokes after m.Revoked revocations, before it is
	// known to be copied, is dropped.
	SaveLater(ctx context.Context, m *connector.SaveRequest) (later bool, err error)
	// Poll returns the loads, the saves by key and those of SaveLater that have ended since the last call, without
	// waiting.
	Poll(ctx context.Context) (connector.Polled, error)
	// Cancel ends a request's load without a report: when it returns, nothing is written
	// to its blocks any more. It is no error where no such load is in flight.
	Cancel(ctx context.Context, request string) error
	// Present says which blocks are offered: a bitmap for each layer group, in which bit i%8 of byte
	// i/8 stands for m.Hashes[i]. They are in the memory of bits where that is large enough; it is what
	// the last call of the same connection returned. The calls by the engine's own keys must keep
	// nothing that their messages refer to, strings included.
	Present(ctx context.Context, m *connector.PresentRequest, bits [][]byte) ([][]byte, error)
	// Fetch starts a load, otherwise like Load. An id that is in flight, or was not polled, is an
	// error.
	Fetch(ctx context.Context, m *connector.KeyedMove) error
	// Put notes a save and returns. The copies come after; the engine must keep the slots until
	// Poll reports the save, once. An error means that nothing was noted.
	Put(ctx context.Context, m *connector.KeyedMove) error
	// FetchWait loads like Fetch, and returns what came of it instead of leaving that to Poll: once the
	// load has ended, or m.Wait has passed or ctx has ended, which end it. When it returns, nothing is
	// written to the slots any more. An error means that nothing was started.
	FetchWait(ctx context.Context, m *connector.KeyedMove) (connector.FetchResult, error)
	// PutWait is to Put as FetchWait is to Fetch. When it returns, the slots are not read any more.
	PutWait(ctx context.Context, m *connector.KeyedMove) (connector.PutResult, error)
	// Touch ends a request: what it used counts as used now.
	Touch(ctx context.Context, m *connector.TouchRequest) error
	// Close ends the session. When it returns, engine memory is no longer touched: the
	// connection is closed after it, and the client takes that as the proof.
	Close()
}

// Backend opens sessions. It is called from several connections at once. An error refuses
// the connection. ctx ends with the connection, and with the server.
type Backend interface {
	OpenScheduler(ctx context.Context, p Peer, m *connector.Manifest) (Scheduler, error)
	OpenWorker(ctx context.Context, p Peer, m *connector.Manifest, rank int) (Worker, error)
}
