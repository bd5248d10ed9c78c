package routerbench

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// DecideTokens is the length of the prompt that [Decide] routes.
const DecideTokens = 128 << 10

// decideBlock is the block size, decideChain the length of the background's prompts in blocks.
const (
	decideBlock = 16
	decideChain = 1000
)

// DecideResult is what [Decide] measured.
type DecideResult struct {
	// DecideFromTokensSeconds is a whole decision on a prompt that all ranks hold: hashing, walk, the
	// scores of every rank, booking, and the end of the request.
	DecideFromTokensSeconds float64 `json:"decide_from_tokens_s"`
	// DecideHalfHeldSeconds is the same where one rank holds half of the prompt, which is predicted
	// already; DecideNewSeconds where nobody has anything of it, and all of it is predicted.
	DecideHalfHeldSeconds float64 `json:"decide_half_held_s"`
	DecideNewSeconds      float64 `json:"decide_new_s"`
	// AllocsPerDecision is how many objects a decision on a held prompt allocates.
	AllocsPerDecision float64 `json:"allocs_per_decision"`
}

// Decide measures whole decisions of 131,072 tokens among o.Ranks ranks, beside o.Background other blocks
// in the index, with the policy cost. It ends early with the context's error.
func Decide(ctx context.Context, o Options) (DecideResult, error) {
	var r DecideResult
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return r, err
	}
	o.Progress("decisions")
	router, err := newDecider(&o)
	if err != nil {
		return r, fmt.Errorf("router benchmark, decisions: %w", err)
	}
	defer router.Close()
	d := decider{ctx: ctx, router: router, rng: rand.New(rand.NewPCG(7, 7))}
	if err := d.measure(&o, &r); err != nil {
		return r, fmt.Errorf("router benchmark, decisions: %w", err)
	}
	return r, nil
}

// newDecider is a router with ranks that have events, as far as decisions can tell.
func newDecider(o *Options) (*route.Router, error) {
	router, err := route.New(route.Options{
		AssumeReady: true, Index: prefix.Options{MaxBlocks: prefix.MaxBlocksLimit, MaxBytes: 64 << 30}, Logger: slog.New(slog.DiscardHandler),
		PredictTTL: time.Hour, ApproximateTTL: time.Hour,
	})
	if err != nil {
		return nil, err
	}
	for i := range o.Ranks {
		// Nobody listens there; what is in the GPUs is put into the index directly.
		err := router.Add(registry.Rank{
			ID: int32(i), Model: "m", Endpoint: "http://127.0.0.1:1", Events: &registry.Events{Endpoint: "tcp://127.0.0.1:1"},
			Speeds: policy.Speeds{PrefillTokens: 10000, DiskBytes: 3e9, BytesPerToken: 131072},
		})
		if err != nil {
			router.Close()
			return nil, err
		}
	}
	return router, nil
}

// decider makes decisions.
type decider struct {
	ctx      context.Context
	router   *route.Router
	rng      *rand.Rand
	request  route.Request
	decision route.Decision
	err      error
}

func (d *decider) measure(o *Options, r *DecideResult) error {
	for i, left := 0, o.Background; left > 0; i, left = i+1, left-decideChain {
		if err := d.hold(int32(i%o.Ranks), d.prompt(min(left, decideChain)*decideBlock)); err != nil {
			return err
		}
	}
	held, half := d.prompt(DecideTokens), d.prompt(DecideTokens)
	for i := range o.Ranks {
		if err := d.hold(int32(i), held); err != nil {
			return err
		}
	}
	if err := d.hold(0, half[:DecideTokens/2]); err != nil {
		return err
	}
	decide := func() { d.decide(held) }
	decide()
	// The block with the last token never counts.
	if want := int32(DecideTokens - decideBlock); d.err == nil && d.decision.UseTokens != want {
		return fmt.Errorf("%d tokens count as cached, not %d", d.decision.UseTokens, want)
	}
	const calls = 20
	r.DecideFromTokensSeconds = least(o.Rounds, calls, decide)
	r.AllocsPerDecision = allocations(100, decide)
	d.decide(half)
	r.DecideHalfHeldSeconds = least(o.Rounds, calls, func() { d.decide(half) })
	fresh := make([][]uint32, o.Rounds)
	for i := range fresh {
		fresh[i] = d.prompt(DecideTokens)
	}
	r.DecideNewSeconds = least(o.Rounds, 1, func() {
		d.decide(fresh[0])
		fresh = fresh[1:]
	})
	return d.err
}

func (d *decider) prompt(tokens int) []uint32 {
	t := make([]uint32, tokens)
	for i := range t {
		t[i] = d.rng.Uint32N(128_000)
	}
	return t
}

// hold puts a prompt into a rank's GPU.
func (d *decider) hold(rank int32, tokens []uint32) error {
	h, ok := d.router.Holder(rank)
	if !ok {
		return fmt.Errorf("no rank %d", rank)
	}
	var keys []connector.Key
	var ids []uint64
	key, block, scratch := connector.RootKey(decideBlock, connector.Scope{}), []byte(nil), []byte(nil)
	for ; len(tokens) >= decideBlock; tokens = tokens[decideBlock:] {
		block = connector.AppendTokens(block[:0], tokens[:decideBlock])
		key, scratch = connector.NextKey(key, block, scratch)
		keys, ids = append(keys, key), append(ids, prefix.KeyID(key))
	}
	return d.router.Index().Stored(h, 0, false, ids, keys)
}

// decide routes a request and ends it.
func (d *decider) decide(tokens []uint32) {
	if d.err != nil {
		return
	}
	d.request = route.Request{Request: policy.Request{Pin: policy.NoPin}, Model: "m", Prompt: tokens}
	if d.err = d.router.Route(d.ctx, &d.request, &d.decision); d.err == nil {
		d.router.Finish(d.decision.Handle)
	}
}
