package spans

import (
	"context"
	"strconv"

	"github.com/zeebo/xxh3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/worker"
)

// Rank makes the spans of one rank's loads and saves. It is safe for concurrent use.
type Rank struct {
	worker.Observer
	e     *Engine
	attrs trace.SpanStartEventOption
	// of returns a load's request and its traceparent.
	of func(load string) (request, trace string)
}

var _ worker.Observer = (*Rank)(nil)

// Rank returns an observer that makes the spans of a rank and passes on to next what it is told: next itself of a nil Engine.
// of returns the request that a load is for, and its traceparent, "" if there is none.
func (e *Engine) Rank(rank int, of func(load string) (request, trace string), next worker.Observer) worker.Observer {
	if e == nil {
		return next
	}
	return &Rank{Observer: next, e: e, of: of, attrs: trace.WithAttributes(attribute.Int("kvconn.rank", rank))}
}

// LoadEnded makes the span of a load.
func (r *Rank) LoadEnded(l *worker.Load) {
	r.Observer.LoadEnded(l)
	id, of := r.of(l.Request)
	span := r.e.t.child("kvconn.load", of, trace.WithTimestamp(l.Began), r.e.attrs, r.attrs)
	if span == nil {
		return
	}
	var bytes int64
	blocks := 0
	for i := range l.Tiers {
		t := &l.Tiers[i]
		blocks, bytes = blocks+t.Blocks, bytes+t.Bytes
		span.SetAttributes(attribute.Int("kvconn.loaded_blocks."+t.Tier, t.Blocks), attribute.Int64("kvconn.loaded_bytes."+t.Tier, t.Bytes))
	}
	span.SetAttributes(request(id), attribute.Int("kvconn.loaded_blocks", blocks), attribute.Int64("kvconn.loaded_bytes", bytes))
	if l.Waited >= 0 {
		span.SetAttributes(attribute.Float64("kvconn.wait_seconds", l.Waited.Seconds()))
	}
	if l.FailedBlocks > 0 {
		span.SetAttributes(attribute.Int("kvconn.failed_blocks", l.FailedBlocks))
		description := strconv.Itoa(l.FailedBlocks) + " blocks failed, the engine computes them"
		if l.Cause != nil {
			description += ": " + l.Cause.Error()
		}
		failed(span, l.CauseKind, description)
	}
	span.End(trace.WithTimestamp(l.Began.Add(l.Took)))
}

// planned is a traced request whose blocks a plan saves.
type planned struct {
	request, trace string
	blocks         int
}

type plannedKey struct{}

// Step calls step, which plans m, and remembers which traced requests have blocks that the plan saves: plans do not say. trace
// returns a request's traceparent. It keeps nothing of m.
func (e *Engine) Step(
	ctx context.Context, m *connector.StepRequest, trace func(request string) string,
	step func(context.Context, *connector.StepRequest) (connector.StepReply, error),
) (connector.StepReply, error) {
	if e == nil {
		return step(ctx, m)
	}
	asked := m.TellSaves
	m.TellSaves = true
	reply, err := step(ctx, m)
	m.TellSaves = asked
	if list := traced(reply.Saves, trace); len(list) > 0 {
		e.t.plans.Add(xxh3.Hash128(reply.Metadata), list)
	}
	if !asked {
		reply.Saves = nil
	}
	return reply, err
}

// traced sums saves up by request, those of recorded traces. The saves of a request follow each other.
func traced(saves []connector.PlannedSave, trace func(request string) string) (out []planned) {
	for i := 0; i < len(saves); {
		p := planned{request: saves[i].Request}
		for ; i < len(saves) && saves[i].Request == p.request; i++ {
			p.blocks += saves[i].Count
		}
		if p.trace = trace(p.request); sampled(p.trace) {
			out = append(out, p)
		}
	}
	return out
}

// Saving returns a context for the save of a plan, by which the end of the save finds the requests: ctx itself if no traced
// request has blocks in it. It does not allocate then, and keeps nothing of metadata.
func (e *Engine) Saving(ctx context.Context, metadata []byte) context.Context {
	if e == nil || e.t.plans.Len() == 0 {
		return ctx
	}
	list, ok := e.t.plans.Get(xxh3.Hash128(metadata))
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, plannedKey{}, list)
}

// SaveEnded makes a span for each traced request of blocks that were saved together.
func (r *Rank) SaveEnded(ctx context.Context, s *worker.Save) {
	r.Observer.SaveEnded(ctx, s)
	list, _ := ctx.Value(plannedKey{}).([]planned)
	for i := range list {
		p := &list[i]
		span := r.e.t.child("kvconn.save", p.trace, trace.WithTimestamp(s.Began), r.e.attrs, r.attrs, trace.WithAttributes(
			request(p.request), attribute.Int("kvconn.planned_blocks", p.blocks), attribute.Int("kvconn.batch_blocks", s.Blocks),
			attribute.Int64("kvconn.batch_bytes", s.Bytes),
		))
		if span == nil {
			continue
		}
		if s.FailedBlocks > 0 {
			span.SetAttributes(attribute.Int("kvconn.failed_blocks", s.FailedBlocks))
			failed(span, "write", strconv.Itoa(s.FailedBlocks)+" blocks of the batch were not written")
		}
		span.End(trace.WithTimestamp(s.Began.Add(s.Took)))
	}
}
