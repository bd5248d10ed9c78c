package policies

import (
	"bufio"
	"container/heap"
	"container/list"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/published"
)

// traceRequest is a line of the conversation trace; a hash id stands for 512 tokens and their prefix.
type traceRequest struct {
	Timestamp    int64   `json:"timestamp"`
	InputLength  int     `json:"input_length"`
	OutputLength int     `json:"output_length"`
	HashIDs      []int32 `json:"hash_ids"`
}

const traceBlock = 512

func readTrace(t *testing.T) []traceRequest {
	t.Helper()
	f, err := os.Open("../../../shared/data/conversation_trace.jsonl")
	if err != nil {
		t.Skipf("the conversation trace is not at hand: %v", err)
	}
	defer f.Close()
	var all []traceRequest
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r traceRequest
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// blockLRU is a cache of blocks with the least recently used one evicted.
type blockLRU struct {
	max   int
	order *list.List
	at    map[int32]*list.Element
}

func newBlockLRU(blocks int) *blockLRU {
	return &blockLRU{max: blocks, order: list.New(), at: map[int32]*list.Element{}}
}

func (c *blockLRU) has(id int32) bool { return c.at[id] != nil }

// use stores the blocks of a prompt, the last one first so that a head outlives its tail.
func (c *blockLRU) use(ids []int32) {
	for _, id := range slices.Backward(ids) {
		if e := c.at[id]; e != nil {
			c.order.MoveToBack(e)
			continue
		}
		if c.order.Len() == c.max {
			delete(c.at, c.order.Remove(c.order.Front()).(int32))
		}
		c.at[id] = c.order.PushBack(id)
	}
}

// simEvent is the end of a prefill or of a request.
type simEvent struct {
	at   time.Duration
	id   uint64
	done bool
}

type simEvents []simEvent

func (h simEvents) Len() int           { return len(h) }
func (h simEvents) Less(i, j int) bool { return h[i].at < h[j].at }
func (h simEvents) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *simEvents) Push(e any)        { *h = append(*h, e.(simEvent)) }
func (h *simEvents) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// simulation runs a trace through ranks with a GPU cache each, one disk for all and prompts computed in
// order, one at a time.
type simulation struct {
	policy  policy.Policy
	tracker *inflight.Tracker
	ids     []int32
	gpu     []*blockLRU
	disk    *blockLRU
	free    []time.Duration // when a rank is through with what it has
	now     time.Duration
	events  simEvents
	state   policy.State
	loads   []inflight.Rank
	speeds  policy.Speeds

	ttft             []float64 // seconds
	computed, placed []float64 // tokens and requests per rank
}

func newSimulation(t *testing.T, p policy.Policy, ranks int, speeds policy.Speeds) *simulation {
	t.Helper()
	s := &simulation{policy: p, disk: newBlockLRU(30000), speeds: speeds, free: make([]time.Duration, ranks), loads: make([]inflight.Rank, ranks),
		computed: make([]float64, ranks), placed: make([]float64, ranks)}
	var err error
	start := time.Unix(0, 0)
	s.tracker, err = inflight.NewTracker(inflight.Options{BlockSize: traceBlock, TTL: 24 * time.Hour, Now: func() time.Time { return start.Add(s.now) }})
	if err != nil {
		t.Fatal(err)
	}
	for r := range ranks {
		s.ids = append(s.ids, int32(r))
		s.gpu = append(s.gpu, newBlockLRU(1000))
		if err := s.tracker.AddRank(int32(r)); err != nil {
			t.Fatal(err)
		}
		s.state.Ranks = append(s.state.Ranks, policy.Rank{ID: int32(r), Ready: true, Speeds: speeds})
	}
	s.state.BlockSize = traceBlock
	return s
}

// match walks the prompt over one rank's GPU and the disk.
func (s *simulation) match(r int, q *traceRequest) policy.Match {
	var m policy.Match
	inGPU, inDisk := true, true
	for _, id := range q.HashIDs {
		g, d := s.gpu[r].has(id), s.disk.has(id)
		if !g && !d {
			break
		}
		inGPU = inGPU && g
		inDisk = !inGPU && inDisk && d
		switch {
		case inGPU:
			m.GPU += traceBlock
			inDisk = true
		case inDisk:
			m.Disk += traceBlock
		}
		if !g {
			m.LoadDisk += traceBlock
		}
		m.Usable += traceBlock
	}
	return m
}

// step routes one request of the trace.
func (s *simulation) step(t *testing.T, id uint64, q *traceRequest, matches []policy.Match) {
	s.now = time.Duration(q.Timestamp) * time.Millisecond
	arrival := s.now
	for len(s.events) > 0 && s.events[0].at <= arrival {
		e := heap.Pop(&s.events).(simEvent)
		s.now = e.at
		if e.done {
			s.tracker.Finish(e.id)
		} else {
			s.tracker.PrefillDone(e.id)
		}
	}
	s.now = arrival
	s.tracker.Snapshot(s.ids, s.loads)
	for r := range s.ids {
		s.state.Ranks[r].Load = s.loads[r]
		matches[r] = s.match(r, q)
	}
	req := policy.Request{ID: id, Tokens: q.InputLength, Match: matches, Pin: policy.NoPin}
	d := policytest.Place(s.policy, &s.state, req)
	r := d.Index
	if r < 0 {
		t.Fatalf("request %d: %v", id, d.Reason)
	}
	// The cut is the engine's affair and the same for every policy: that of the policy cost.
	req.Pin, req.Explain = d.Rank, true
	engine := policytest.Place(policy.NewCost(policy.CostOptions{}), &s.state, req)
	use, loading, prefill := engine.UseTokens, engine.Scores[r].LoadSeconds, engine.Scores[r].PrefillSeconds
	begin := max(arrival, s.free[r])
	s.free[r] = begin + time.Duration((loading+prefill)*float64(time.Second))
	s.ttft = append(s.ttft, (s.free[r] - arrival).Seconds())
	s.computed[r] += float64(q.InputLength - int(use))
	s.placed[r]++
	if err := s.tracker.Add(inflight.Request{ID: id, Rank: int32(r), PromptTokens: q.InputLength, CachedTokens: int(use), DiskTokens: int(engine.LoadDisk)}); err != nil {
		t.Fatal(err)
	}
	heap.Push(&s.events, simEvent{at: s.free[r], id: id})
	heap.Push(&s.events, simEvent{at: s.free[r] + time.Duration(q.OutputLength)*25*time.Millisecond, id: id, done: true})
	s.gpu[r].use(q.HashIDs)
	s.disk.use(q.HashIDs)
}

func (s *simulation) run(t *testing.T, trace []traceRequest) {
	t.Helper()
	matches := make([]policy.Match, len(s.ids))
	for i := range trace {
		s.step(t, uint64(i), &trace[i], matches)
	}
	slices.Sort(s.ttft)
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func (s *simulation) p95() float64 { return s.ttft[int(math.Ceil(0.95*float64(len(s.ttft))))-1] }

// long reports whether long tests are asked for.
func long() bool { return os.Getenv("KVCONN_TEST_LONG") == "1" }

func TestCostBeatsTheOthersOnTheConversationTrace(t *testing.T) {
	trace := readTrace(t)
	all := []policy.Speeds{
		{PrefillTokens: 10000, DiskBytes: 3e9, BytesPerToken: 128 << 10}, // a quarter busy
		{PrefillTokens: 4500, DiskBytes: 3e9, BytesPerToken: 128 << 10},  // near its limit
		{PrefillTokens: 30000, DiskBytes: 6e9, BytesPerToken: 128 << 10}, // almost idle
		{PrefillTokens: 10000, DiskBytes: 1e9, BytesPerToken: 128 << 10}, // loading is slower than computing
		{PrefillTokens: 10000}, // no disk
	}
	if !long() {
		trace, all = trace[:2000], all[:1]
	}
	for _, speeds := range all {
		t.Logf("%.0f tokens/s, %.1f GB/s of disk", speeds.PrefillTokens, speeds.DiskBytes/1e9)
		run := func(p policy.Policy) (average, p95, balance float64) {
			s := newSimulation(t, p, 8, speeds)
			s.run(t, trace)
			average, p95, balance = mean(s.ttft), s.p95(), slices.Max(s.computed)/mean(s.computed)
			requests := slices.Max(s.placed) / mean(s.placed)
			t.Logf("%-12s time to first token: mean %.3f s, p95 %.3f s; max/mean of computed tokens %.3f, of requests %.3f", p.Name(), average, p95, balance, requests)
			return average, p95, max(balance, requests)
		}
		average, p95, balance := run(policy.NewCost(policy.CostOptions{}))
		if balance > 1.15 {
			t.Errorf("cost: the busiest rank has %.3f times the mean", balance)
		}
		for _, p := range []policy.Policy{policy.NewRoundRobin(), published.NewLoad(published.LoadOptions{}), published.NewKVAware(published.KVAwareOptions{}), published.NewKVAware(published.KVAwareOptions{GPUOnly: true})} {
			if a, b, _ := run(p); average >= a || p95 >= b {
				t.Errorf("cost has mean %.3f s and p95 %.3f s, %s %.3f s and %.3f s", average, p95, p.Name(), a, b)
			}
		}
	}
}
