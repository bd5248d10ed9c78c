package daemon

import (
	"context"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
)

// keyedSession is the session of a rank whose engine brings its own keys: a worker that has a leader
// too.
type keyedSession struct{ *workerSession }

// Present says which blocks are offered.
func (s keyedSession) Present(_ context.Context, m *connector.PresentRequest) ([][]byte, error) {
	return s.keyed.Present(m), nil
}

// Fetch starts a load.
func (s keyedSession) Fetch(ctx context.Context, m *connector.KeyedMove) error {
	err := s.Worker.Fetch(ctx, m)
	if err == nil {
		s.keyed.Loading(m)
	}
	return err
}

// Put notes a save.
func (s keyedSession) Put(ctx context.Context, m *connector.KeyedMove) error {
	err := s.Worker.Put(ctx, m)
	if err == nil {
		s.keyed.Saving(m)
	}
	return err
}

// Touch ends a request.
func (s keyedSession) Touch(_ context.Context, m *connector.TouchRequest) error {
	s.keyed.Touch(m)
	return nil
}

// Poll returns what has ended.
func (s keyedSession) Poll(ctx context.Context) (connector.Polled, error) {
	p, err := s.Worker.Poll(ctx)
	s.keyed.Loaded(p.Finished)
	return p, err
}

// Cancel ends a load without a report.
func (s keyedSession) Cancel(ctx context.Context, load string) error {
	err := s.Worker.Cancel(ctx, load)
	s.keyed.Cancelled(load)
	return err
}

// Register opens the engine's memory.
func (s keyedSession) Register(ctx context.Context, r *server.Registration) (server.Registered, error) {
	out, err := s.workerSession.Register(ctx, r)
	s.keyed.Unregistered()
	return out, err
}

// Unregister releases the engine's memory.
func (s keyedSession) Unregister(ctx context.Context) error {
	err := s.workerSession.Unregister(ctx)
	s.keyed.Unregistered()
	return err
}

// leads reports whether the session's leader stands for its engine: every rank asks for the same
// requests, so the first one's counts.
func (s *workerSession) leads() bool { return s.keyed != nil && s.rank == 0 }

// Present is for engines that bring their own keys.
func (s *workerSession) Present(context.Context, *connector.PresentRequest) ([][]byte, error) {
	return nil, s.CheckKeyed()
}

// Touch is for engines that bring their own keys.
func (s *workerSession) Touch(context.Context, *connector.TouchRequest) error { return s.CheckKeyed() }
