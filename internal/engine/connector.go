package engine

import (
	"context"
	"os"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine/handoff"
)

// SchedulerConnector is the connector's end at the engine's scheduler. Its methods cannot
// fail: without a daemon nothing is offered.
type SchedulerConnector interface {
	// Session numbers what the leader was told: under another number it must be told again.
	Session() uint64
	// Match says how many tokens can be loaded beyond the local prefix hit. It is asked
	// for waiting requests without computed tokens: in vLLM's order again in every step
	// in which there is no room for them, in TensorRT-LLM's once there is.
	Match(ctx context.Context, m *connector.MatchRequest) connector.Offer
	// Step is called once per engine step, also for empty ones, when everything is
	// allocated and before anything is computed.
	Step(ctx context.Context, m *connector.StepRequest) connector.StepReply
	// Loaded tells what became of loads that ended, all ranks taken together.
	Loaded(ctx context.Context, m *connector.LoadedReport)
	// Reset tells that the engine has dropped its own prefix cache.
	Reset(ctx context.Context)
}

// WorkerConnector is the connector's end at one rank. The ranks of an engine are called at
// the same time, each from one goroutine.
type WorkerConnector interface {
	// Load starts a step's loads, before the forward pass, and returns at once.
	Load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad)
	// Save is called after the forward pass and returns when the blocks to save are
	// copied out of engine memory.
	Save(ctx context.Context, metadata []byte) connector.SaveResult
	// Poll returns the loads that ended since the last call, each exactly once.
	Poll(ctx context.Context) []connector.FinishedLoad
}

// Canceller is a [WorkerConnector] that can take a load back: when Cancel has returned nil
// nothing is written for the request any more, and its load is not reported. After an error
// it may still be written to.
type Canceller interface {
	Cancel(ctx context.Context, request string) error
}

// Reuser is a [WorkerConnector] that is told which blocks are about to get other content, before they do: its saves may be under
// way after Save has returned, and nothing may be kept that is copied from these blocks from here on. Ranks that are processes
// do not tell.
type Reuser interface {
	Reuse(blocks []uint32)
}

// SchedulerClient and WorkerClient are a daemon's clients: see packages client and handoff.
type (
	SchedulerClient interface {
		SchedulerConnector
		Connect(ctx context.Context) error
		Close()
	}
	WorkerClient interface {
		WorkerConnector
		Canceller
		Connect(ctx context.Context) error
		Close()
	}
)

// NewSchedulerClient returns the client that fits o.Handoff.
func NewSchedulerClient(o client.Options) (SchedulerClient, error) {
	if o.Handoff {
		return handoff.NewScheduler(o)
	}
	return client.NewScheduler(o)
}

// NewWorkerClient returns the client that fits o.Handoff, for the rank whose memory lies in
// regions as layout says.
func NewWorkerClient(o client.Options, rank int, layout connector.Layout, regions []*os.File) (WorkerClient, error) {
	if o.Handoff {
		return handoff.NewWorker(o, rank, layout, regions)
	}
	return client.NewWorker(o, rank, layout, regions)
}

// noConnector stands where no connector is attached.
type noConnector struct{}

func (noConnector) Session() uint64 { return 0 }

func (noConnector) Match(context.Context, *connector.MatchRequest) (o connector.Offer) { return o }

func (noConnector) Step(context.Context, *connector.StepRequest) (r connector.StepReply) { return r }

func (noConnector) Loaded(context.Context, *connector.LoadedReport) {}

func (noConnector) Reset(context.Context) {}

func (noConnector) Load(context.Context, []byte, []connector.PlannedLoad) {}

func (noConnector) Save(context.Context, []byte) (r connector.SaveResult) { return r }

func (noConnector) Poll(context.Context) []connector.FinishedLoad { return nil }
