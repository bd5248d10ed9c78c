package daemon

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/version"
)

// openSpans begins to send traces, if they are to be sent.
func (d *daemon) openSpans() (err error) {
	if d.opts.Spans == nil {
		return nil
	}
	o := *d.opts.Spans
	o.Logger, o.Version, o.Instance = d.opts.Logger, version.Number(), d.info.Epoch
	if d.spans, err = spans.New(o); err != nil {
		return fmt.Errorf("send traces: %w", err)
	}
	d.opts.Logger.Info("traces of requests are sent", "url", o.URL, "ratio", o.Ratio)
	return nil
}

// Step is the leader's. Routers are told of the adapters that it names, and traces need to know what it saves.
func (s *schedulerSession) Step(ctx context.Context, m *connector.StepRequest) (connector.StepReply, error) {
	s.b.adapters.Tell(s, s.namespace, m.Adapters)
	if s.spans != nil {
		return s.spans.Step(ctx, m, s.Leader.Trace, s.Leader.Step)
	}
	return s.Leader.Step(ctx, m)
}

// Save is the worker's, whose end is told with the traces of the requests.
func (s *workerSession) Save(ctx context.Context, metadata []byte) (connector.SaveResult, error) {
	return s.Worker.Save(s.spans.Saving(ctx, metadata), metadata)
}

// SaveLater is the worker's, whose end is told with the traces of the requests.
func (s *workerSession) SaveLater(ctx context.Context, m *connector.SaveRequest) (bool, error) {
	return s.Worker.SaveLater(s.spans.Saving(ctx, m.Metadata), m)
}
