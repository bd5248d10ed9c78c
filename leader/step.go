package leader

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// Step plans what the workers do in one engine step: the loads into blocks that were allocated, and
// the saves of every block that the step's forward pass fills. Steps may come before the loads and
// saves of earlier ones have ended. It keeps nothing that m refers to.
func (l *Leader) Step(_ context.Context, m *connector.StepRequest) (connector.StepReply, error) {
	l.mu.Lock()
	reply, err := l.step(m)
	probe := l.probeDue()
	l.mu.Unlock()
	if probe {
		l.opts.Probe()
	}
	return reply, err
}

func (l *Leader) step(m *connector.StepRequest) (connector.StepReply, error) {
	var reply connector.StepReply
	l.scheduled = l.scheduled[:0]
	for i := range m.Scheduled {
		l.scheduled = append(l.scheduled, l.requests.find(m.Scheduled[i].Request))
	}
	if err := l.check(m); err != nil || l.closed {
		return reply, err
	}
	plan := connector.Plan{Namespace: l.opts.Namespace}
	now := l.opts.Now()
	l.steps++
	l.room.begin()
	l.telling, l.told = m.TellSaves, nil
	l.planned.advance(now)
	l.learn(m, now)
	l.releaseRetired()
	for _, id := range m.Preempted {
		if r := l.requests.find(id); r != nil {
			l.displace(r)
		}
	}
	for i := range m.Allocs {
		// A handoff is planned by the engine's side, from the offer: it cannot fail.
		if d, ok := l.planLoad(&m.Allocs[i]); ok && l.opts.Handoff == nil {
			l.takeLoad(&d)
			plan.Loads = append(plan.Loads, d)
			reply.Loads = append(reply.Loads, d.Planned())
		}
	}
	for i := range m.Scheduled {
		plan.Saves = l.planSaves(plan.Saves, l.scheduled[i], &m.Scheduled[i])
	}
	for _, id := range m.Finished {
		if r := l.requests.find(id); r != nil {
			if l.opts.Ended != nil {
				l.opts.Ended(r.arrival, len(r.tokens)-r.prompt)
			}
			l.forget(r)
		}
	}
	l.makeRoom(0, 0)
	reply.Saves, l.told = l.told, nil
	if !plan.Empty() {
		reply.Metadata = plan.Append(nil)
	}
	return reply, nil
}

// check refuses a step that contradicts itself, before anything has changed.
func (l *Leader) check(m *connector.StepRequest) error {
	for i := range m.Allocs {
		if a := &m.Allocs[i]; !l.allocFits(a) {
			return fmt.Errorf("%w: request %q has %d block tables that do not hold %d tokens computed and %d to load", connector.ErrBadRequest,
				a.Request, len(a.Blocks), a.Computed, a.External)
		}
	}
	for i := range m.Scheduled {
		if s := &m.Scheduled[i]; !l.scheduledFits(l.scheduled[i], s) {
			return fmt.Errorf("%w: request %q has other layer groups, or more than %d blocks or tokens", connector.ErrBadRequest, s.Request, connector.MaxTokens)
		}
	}
	return nil
}

func (l *Leader) allocFits(a *connector.Alloc) bool {
	if a.External <= 0 {
		return a.External == 0
	}
	if a.Computed < 0 || a.Computed > connector.MaxTokens || a.External > connector.MaxTokens || a.Boundary() > connector.MaxTokens ||
		a.Computed%l.bs != 0 || len(a.Blocks) != len(l.groups) || (a.GroupComputed != nil && len(a.GroupComputed) != len(l.groups)) {
		return false
	}
	for g := range l.groups {
		if a.GroupComputed != nil && (a.GroupComputed[g] < 0 || a.GroupComputed[g] > a.Boundary()) {
			return false
		}
		if _, end := a.LoadRange(l.groups[g].Group, g, l.bs); len(a.Blocks[g]) < end || len(a.Blocks[g]) > connector.MaxTokens {
			return false
		}
	}
	return true
}

func (l *Leader) scheduledFits(r *request, s *connector.Scheduled) bool {
	if s.Computed < 0 || s.Count < 0 || s.Computed > connector.MaxTokens || s.Count > connector.MaxTokens ||
		s.From < 0 || s.From > connector.MaxTokens || s.From+len(s.NewTokens) > connector.MaxTokens ||
		(len(s.NewBlocks) != 0 && len(s.NewBlocks) != len(l.groups)) {
		return false
	}
	for g := range s.NewBlocks {
		have := 0
		if r != nil && !s.Reset {
			have = len(r.tables[g])
		}
		if have+len(s.NewBlocks[g]) > connector.MaxTokens {
			return false
		}
	}
	return true
}
