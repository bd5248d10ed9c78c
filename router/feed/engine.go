package feed

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/internal/zmtp"
)

// Engine follows the KV cache events of an engine's data-parallel ranks.
type Engine struct {
	opts  EngineOptions
	ranks []*rankFeed
}

// NewEngine makes a feed that writes to index.
func NewEngine(o EngineOptions, index Index) (*Engine, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{opts: o}
	for _, r := range o.Ranks {
		f, err := newRankFeed(&e.opts, r, index)
		if err != nil {
			return nil, err
		}
		e.ranks = append(e.ranks, f)
	}
	return e, nil
}

// Run follows the ranks until ctx ends; a rank that cannot be reached is tried for ever. It fails only if
// an endpoint cannot be bound. What the ranks hold stays in the index: its owner removes the holders.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range e.ranks {
		g.Go(func() error { return r.run(ctx) })
	}
	return g.Wait()
}

// Stats are those of every rank, in the order of the options.
func (e *Engine) Stats() []RankStats {
	out := make([]RankStats, len(e.ranks))
	for i, r := range e.ranks {
		out[i] = r.statsNow()
	}
	return out
}

func newRankFeed(o *EngineOptions, r Rank, index Index) (*rankFeed, error) {
	in, err := NewIngest(IngestOptions{
		BlockSize: o.BlockSize, Holder: r.Holder, Offload: r.Offload, HasOffload: r.HasOffload,
		LoRAName: o.LoRAName, Limits: o.Limits,
	}, index)
	if err != nil {
		return nil, err
	}
	f := &rankFeed{opts: o, rank: r, ingest: in, rebuilds: backoff{least: o.RecoverInterval, most: maxRebuildInterval}}
	f.reader = reader{opts: o, queue: make(chan item, o.QueueBatches)}
	if f.reader.endpoint, err = zmtp.Offset(o.Endpoint, r.Number); err != nil {
		return nil, err
	}
	if o.ReplayEndpoint != "" {
		if f.replayEndpoint, err = zmtp.Offset(o.ReplayEndpoint, r.Number); err != nil {
			return nil, err
		}
	}
	f.log = o.Logger.With("dp_rank", r.Number, "endpoint", f.reader.endpoint)
	f.stats = RankStats{
		Rank: r.Number, Endpoint: f.reader.endpoint, State: StateConnecting, LastSeq: -1, EngineRank: -1,
	}
	f.publishStats()
	return f, nil
}
