package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
)

// ErrNotPlaced means that a policy placed a request on no rank.
var ErrNotPlaced = errors.New("the policy placed a request on no rank")

type flight struct {
	arrival float64
	rank    int32
	// gpu, disk and object are the numbers of blocks found at the head of its prompt by tier; use is how
	// many of them are not computed.
	gpu, disk, object, use int
	loads                  int // loads under way
}

type node struct {
	disk                 *lru
	diskLink, objectLink *link
	onDisk               int // blocks on disk of the prompt being routed
	diskRead, objectRead float64
	saveBudget           float64 // bytes that can be saved now
	savedAt              float64
	dropped              float64 // bytes of saves
}

type simulation struct {
	opts    Options
	trace   *Trace
	policy  policy.Policy
	tracker *inflight.Tracker

	now     float64
	timers  agenda
	seq     uint64
	running int // requests in flight
	ranks   []rank
	nodes   []node
	object  *lru
	flights []flight

	ids      []int32
	loads    []inflight.Rank
	state    policy.State
	matches  []policy.Match
	decision policy.Decision
	tally    tally
}

// Simulate runs a trace through ranks and tiers with a policy, which must be fresh: what it remembers of
// past requests changes the result. progress may be nil; it is called now and then with the number of requests
// that have arrived. Errors are those of ctx, of options that cannot work, or [ErrNotPlaced].
func Simulate(ctx context.Context, t *Trace, o Options, p policy.Policy, progress func(arrived int)) (*Result, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.FullBlocksOnly {
		t = t.keepFullBlocks()
	}
	s, err := newSimulation(t, o.effective(), p)
	if err != nil {
		return nil, err
	}
	const often = 256
	for n, a := range s.arrivals() {
		if n%often == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if progress != nil {
				progress(n)
			}
		}
		if o.Sequential {
			s.runUntil(math.Inf(1))
			a.at = s.now
		}
		s.runUntil(a.at)
		s.now = a.at
		if err := s.arrive(a.request); err != nil {
			return nil, err
		}
	}
	s.runUntil(math.Inf(1))
	if s.running != 0 {
		panic(fmt.Sprintf("replay: %d requests never ended", s.running))
	}
	return s.result(), nil
}

func newSimulation(t *Trace, o Options, p policy.Policy) (*simulation, error) {
	s := &simulation{opts: o, trace: t, policy: p, object: newLRU(o.ObjectBlocks), flights: make([]flight, len(t.Requests))}
	start := time.Unix(0, 0)
	tracker, err := inflight.NewTracker(inflight.Options{
		BlockSize: t.BlockTokens, TTL: math.MaxInt64, MaxRequests: len(t.Requests) + 1, MaxRanks: o.Ranks,
		Now: func() time.Time { return start.Add(time.Duration(min(s.now, maxClock) * float64(time.Second))) },
	})
	if err != nil {
		return nil, fmt.Errorf("track load: %w", err)
	}
	s.tracker = tracker
	for range o.Nodes {
		s.nodes = append(s.nodes, node{disk: newLRU(o.DiskBlocks), diskLink: newLink(o.DiskBytesPerS), objectLink: newLink(o.ObjectBytesPerS), saveBudget: o.SaveBytesPerS})
	}
	for i := range o.Ranks {
		s.ranks = append(s.ranks, rank{gpu: newGPUCache(o.GPUBlocks), node: i * o.Nodes / o.Ranks, predicted: map[int32]prediction{}})
		s.ids = append(s.ids, int32(i))
		s.state.Ranks = append(s.state.Ranks, policy.Rank{ID: int32(i), Ready: true, Node: int32(s.ranks[i].node)})
		if err := tracker.AddRank(int32(i)); err != nil {
			return nil, fmt.Errorf("track load: %w", err)
		}
	}
	s.state.BlockSize = t.BlockTokens
	s.loads, s.matches = make([]inflight.Rank, o.Ranks), make([]policy.Match, o.Ranks)
	s.tally = newTally(len(t.Requests), o.Ranks)
	return s, nil
}

// maxClock is the last second that a [time.Duration] can hold; the clock of the load tracker stops there.
const maxClock = 9e9

type arrival struct {
	at      float64
	request int32
}

func (s *simulation) arrivals() []arrival {
	out := make([]arrival, len(s.trace.Requests))
	random := rand.New(rand.NewPCG(uint64(s.opts.Seed), 0))
	for i := range out {
		out[i] = arrival{at: s.trace.Requests[i].At / s.opts.Speed, request: int32(i)}
		if s.opts.Spread > 0 {
			out[i].at += random.Float64() * s.opts.Spread
		}
	}
	slices.SortStableFunc(out, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return out
}

// runUntil handles all that ends up to a time.
func (s *simulation) runUntil(end float64) {
	for {
		at, which := math.Inf(1), (*link)(nil)
		if len(s.timers) > 0 {
			at = s.timers[0].due
		}
		for i := range s.nodes {
			for _, l := range [...]*link{s.nodes[i].diskLink, s.nodes[i].objectLink} {
				if t := l.next(); t < at {
					at, which = t, l
				}
			}
		}
		if math.IsInf(at, 1) || at > end {
			return
		}
		s.now = max(s.now, at)
		var t task
		if which != nil {
			t = which.finish(s.now)
		} else {
			t = s.timers.Pop()
		}
		s.ended(&t)
	}
}

func (s *simulation) after(seconds float64, request int32, what phase) {
	s.seq++
	s.timers.Push(task{due: s.now + seconds, seq: s.seq, request: request, phase: what})
}

// id is the id by which tracker and policy know a request.
func (s *simulation) id(request int32) uint64 { return uint64(s.opts.Seed)<<32 | uint64(request) }

func (s *simulation) arrive(request int32) error {
	r := &s.trace.Requests[request]
	if len(r.Blocks) > s.opts.GPUBlocks {
		s.tally.refused++
		return nil
	}
	s.look(r)
	req := policy.Request{
		ID: s.id(request), Tokens: r.InputTokens, Match: s.matches, Pin: policy.NoPin,
		Conversation: strconv.Itoa(int(r.Conversation)), FirstTurn: r.FirstTurn,
	}
	d := &s.decision
	s.policy.Place(&s.state, &req, d)
	if !d.Placed() {
		return fmt.Errorf("request %d: %w: %v", request, ErrNotPlaced, d.Reason)
	}
	err := s.tracker.Add(inflight.Request{
		ID: req.ID, Rank: d.Rank, PromptTokens: r.InputTokens,
		CachedTokens: int(d.UseTokens), DiskTokens: int(d.LoadDisk), ObjectTokens: int(d.LoadObject),
	})
	if err != nil {
		return fmt.Errorf("track load: %w", err)
	}
	s.flights[request] = flight{arrival: s.now, rank: d.Rank}
	s.running++
	s.tally.placed(r, d.Rank)
	to := &s.ranks[d.Rank]
	if s.opts.PredictTTL > 0 {
		to.predict(r.Blocks, s.now+s.opts.PredictTTL)
	}
	to.queue = append(to.queue, request)
	s.admit(to)
	return nil
}

// look brings what the policy sees up to date: loads, speeds and prefixes of all ranks.
func (s *simulation) look(r *Request) {
	s.tracker.Snapshot(s.ids, s.loads)
	inObject := s.object.prefix(r.Blocks)
	for i := range s.nodes {
		s.nodes[i].onDisk = s.nodes[i].disk.prefix(r.Blocks)
	}
	for i := range s.ranks {
		n := &s.nodes[s.ranks[i].node]
		s.matches[i] = s.trace.match(r, s.ranks[i].seen(r.Blocks, s.now), n.onDisk, inObject)
		s.state.Ranks[i].Load = s.loads[i]
		s.state.Ranks[i].Speeds = s.speeds(n)
	}
}

func (s *simulation) speeds(n *node) policy.Speeds {
	return policy.Speeds{
		PrefillTokens: s.opts.PrefillTokensPerS, BytesPerToken: s.opts.BytesPerToken,
		DiskBytes: n.diskLink.bytesPerS, DiskDelay: s.opts.DiskDelay,
		ObjectBytes: n.objectLink.bytesPerS, ObjectDelay: s.opts.ObjectDelay,
	}
}
