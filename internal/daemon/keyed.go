package daemon

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
)

// keyedSession is the session of a rank whose engine brings its own keys: a worker that has a leader
// too.
type keyedSession struct{ *workerSession }

// Present says which blocks are offered.
func (s keyedSession) Present(_ context.Context, m *connector.PresentRequest, bits [][]byte) ([][]byte, error) {
	defer s.b.times.Matched(time.Now())
	if m.Trace == "" {
		return s.keyed.Present(m, bits), nil
	}
	return s.traces.Present(s.spans, m, bits, s.manifest.BlockSize, s.keyed.Present), nil
}

// Fetch starts a load.
func (s keyedSession) Fetch(ctx context.Context, m *connector.KeyedMove) error {
	s.ends.Lock()
	defer s.ends.Unlock()
	s.traces.Loading(m)
	err := s.Worker.Fetch(ctx, m)
	if err == nil {
		s.keyed.Loading(m)
	}
	return err
}

// FetchWait loads blocks, and returns once the load has ended. A load that was given up has not failed for its request.
func (s keyedSession) FetchWait(ctx context.Context, m *connector.KeyedMove) (connector.FetchResult, error) {
	s.traces.Loading(m)
	f, err := s.Worker.StartFetch(m)
	if err != nil {
		return connector.FetchResult{}, err
	}
	defer f.Close()
	s.keyed.Loading(m)
	r := f.Wait(ctx)
	ended := connector.FinishedLoad{Request: m.ID}
	if f.Failed() {
		ended.FailedBlocks = []uint32{connector.NoBlock} // the leader asks whether there are any
	}
	s.keyed.Loaded([]connector.FinishedLoad{ended})
	return r, nil
}

// Put notes a save.
func (s keyedSession) Put(ctx context.Context, m *connector.KeyedMove) error {
	err := s.Worker.Put(ctx, m)
	if err == nil {
		s.keyed.Saving(m)
	}
	return err
}

// PutWait saves blocks, and returns once the save has ended.
func (s keyedSession) PutWait(ctx context.Context, m *connector.KeyedMove) (connector.PutResult, error) {
	r, err := s.Worker.PutWait(ctx, m)
	if err == nil {
		s.keyed.Saving(m)
	}
	return r, err
}

// Touch ends a request.
func (s keyedSession) Touch(_ context.Context, m *connector.TouchRequest) error {
	s.keyed.Touch(m)
	s.traces.Ended(m.Request)
	return nil
}

// Poll returns what has ended.
func (s keyedSession) Poll(ctx context.Context) (connector.Polled, error) {
	s.ends.Lock()
	defer s.ends.Unlock()
	p, err := s.Worker.Poll(ctx)
	s.keyed.Loaded(p.Finished)
	return p, err
}

// Cancel ends a load without a report.
func (s keyedSession) Cancel(ctx context.Context, load string) error {
	err := s.Worker.Cancel(ctx, load)
	s.ended(func() { s.keyed.Cancelled(load) })
	return err
}

// ended tells the leader of the end of loads that it may not know yet.
func (s keyedSession) ended(tell func()) {
	s.ends.Lock()
	defer s.ends.Unlock()
	tell()
}

// Register opens the engine's memory. The leader hears of the end of the loads on the memory before first: another
// connection may start loads on the new one before this returns.
func (s keyedSession) Register(ctx context.Context, r *server.Registration) (server.Registered, error) {
	_ = s.Worker.Unregister(ctx) // Register does so too, and takes over the descriptors whatever happens
	s.ended(s.keyed.Unregistered)
	return s.workerSession.Register(ctx, r)
}

// Unregister releases the engine's memory.
func (s keyedSession) Unregister(ctx context.Context) error {
	err := s.workerSession.Unregister(ctx)
	s.ended(s.keyed.Unregistered)
	return err
}

// leads reports whether the session's leader stands for its engine: every rank asks for the same
// requests, so the first one's counts.
func (s *workerSession) leads() bool { return s.keyed != nil && s.rank == 0 }

// Present is for engines that bring their own keys.
func (s *workerSession) Present(context.Context, *connector.PresentRequest, [][]byte) ([][]byte, error) {
	return nil, s.CheckKeyed()
}

// FetchWait is for engines that bring their own keys.
func (s *workerSession) FetchWait(context.Context, *connector.KeyedMove) (connector.FetchResult, error) {
	return connector.FetchResult{}, s.CheckKeyed()
}

// PutWait is for engines that bring their own keys.
func (s *workerSession) PutWait(context.Context, *connector.KeyedMove) (connector.PutResult, error) {
	return connector.PutResult{}, s.CheckKeyed()
}

// Touch is for engines that bring their own keys.
func (s *workerSession) Touch(context.Context, *connector.TouchRequest) error { return s.CheckKeyed() }
