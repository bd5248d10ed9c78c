// Package handoff is a client for engines that have no way to report a failed load, as
// TensorRT-LLM: what the daemon offers is verified and pinned in its host tier, and the
// engine copies it itself. It is the reference implementation of docs/protocol.md, Handoff
// mode, on top of the ordinary client.
package handoff

import (
	"context"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// Scheduler is the client of an engine's scheduler. It plans the loads itself, from the
// offers. Its methods never fail, and it is safe for concurrent use, as [client.Scheduler].
type Scheduler struct {
	*client.Scheduler
	manifest  connector.Manifest
	namespace string

	mu     sync.Mutex
	offers offers
}

// NewScheduler returns a client that connects on its first use. It fails only on options
// that cannot work.
func NewScheduler(o client.Options) (*Scheduler, error) {
	o.Handoff = true
	c, err := client.NewScheduler(o)
	if err != nil {
		return nil, err
	}
	return &Scheduler{Scheduler: c, manifest: o.Manifest, namespace: o.Manifest.Digest().String()}, nil
}

// Match asks what can be loaded for a request.
func (s *Scheduler) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	offer := s.Scheduler.Match(ctx, m)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offers.note(m.Request, offer)
}

// Step tells the leader of an engine step, which plans the saves, and plans the loads beside
// them. The metadata is for [Worker.Load] and [Worker.Save] of all ranks.
func (s *Scheduler) Step(ctx context.Context, m *connector.StepRequest) connector.StepReply {
	p := plan{Namespace: s.namespace, Saves: s.Scheduler.Step(ctx, m).Metadata}
	var reply connector.StepReply
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range m.Allocs {
		a := &m.Allocs[i]
		offer := s.offers.take(a.Request)
		if a.External > 0 {
			p.Loads = append(p.Loads, planLoad(offer, a, &s.manifest))
			reply.Loads = append(reply.Loads, a.PlannedLoad(&s.manifest))
		}
	}
	for _, ids := range [][]string{m.Preempted, m.Finished} {
		for _, id := range ids {
			s.offers.take(id)
		}
	}
	if len(p.Loads)+len(p.Saves) > 0 {
		reply.Metadata = p.encode()
	}
	return reply
}
