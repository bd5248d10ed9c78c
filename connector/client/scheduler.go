package client

import (
	"context"
	"errors"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// Scheduler is the scheduler's connection to the leader. Its methods never fail: without
// a daemon nothing is offered and nothing is planned. It is safe for concurrent use.
//
// Order of calls: Match for each waiting request, as often as the engine asks; Step once
// an engine step, its answer going to all ranks; Loaded once all ranks have reported a
// load; Reset when the engine has dropped its own cache. See server.Scheduler for all of
// it. A call waits no longer than Options.CallTimeout, or ctx's deadline if that is
// earlier; a ctx that is canceled without a deadline is not looked at while one waits.
type Scheduler struct {
	mu   sync.Mutex
	link link
}

// NewScheduler returns a client that connects on its first use. It fails only on
// options that cannot work.
func NewScheduler(o Options) (*Scheduler, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{link: link{opts: o, role: wire.RoleScheduler}}, nil
}

// Connect connects now, and says why it cannot.
func (s *Scheduler) Connect(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link.ensure(ctx, true)
}

// Session numbers what the leader was told: under another number it knows nothing of it,
// and requests are told from their beginning.
func (s *Scheduler) Session() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link.session
}

// Match asks what can be loaded for a request. Where the leader does not know the tokens
// before m.From it offers nothing, and the session is another one.
func (s *Scheduler) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var offer connector.Offer // stays on the stack: a match costs no allocation
	err := s.link.do(ctx, false, wire.OpMatch,
		func(b []byte) []byte { return wire.AppendMatch(b, m) },
		func(b []byte) error { return wire.DecodeOffer(b, &offer) })
	switch {
	case errors.Is(err, connector.ErrUnknownRequest):
		s.link.session++
		return connector.Offer{}
	case err != nil:
		return connector.Offer{}
	}
	return offer
}

// Step tells the leader of an engine step and returns the plan for the workers.
func (s *Scheduler) Step(ctx context.Context, m *connector.StepRequest) connector.StepReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reply connector.StepReply
	err := s.link.do(ctx, false, wire.OpStep,
		func(b []byte) []byte { return wire.AppendStep(b, m) },
		func(b []byte) error { return wire.DecodeStepReply(b, &reply) })
	if err == nil {
		return reply
	}
	// Loads that the engine expects and nobody will run are planned as empty work: the
	// worker's client reports them as failed.
	reply = connector.StepReply{}
	for i := range m.Allocs {
		a := &m.Allocs[i]
		if a.External > 0 {
			reply.Loads = append(reply.Loads, a.PlannedLoad(&s.link.opts.Manifest))
		}
	}
	return reply
}

// Loaded reports what came of loads.
func (s *Scheduler) Loaded(ctx context.Context, m *connector.LoadedReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without the report the leader lets the leases run out; nothing else depends on it.
	_ = s.link.do(ctx, false, wire.OpLoaded, func(b []byte) []byte { return wire.AppendLoaded(b, m) }, nil)
}

// Reset tells that the engine has dropped its own cache.
func (s *Scheduler) Reset(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A leader that was not reached has forgotten everything anyway, or will.
	_ = s.link.do(ctx, false, wire.OpReset, wire.AppendEmpty, nil)
}

// Close ends the connection.
func (s *Scheduler) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link.lose()
}
