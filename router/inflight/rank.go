package inflight

import (
	"math"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Rank is the load of one data-parallel rank at one moment, with the JSON names of the HTTP interface.
type Rank struct {
	// ActiveRequests counts the requests in flight, QueuedRequests those of them that wait or are in
	// prefill.
	ActiveRequests int `json:"active_requests"`
	QueuedRequests int `json:"queued_requests"`
	// QueuedTokens are left to compute before a new request: the uncached prompt tokens of requests that
	// wait or are in prefill. QueuedDiskTokens and QueuedObjectTokens are what they load from these tiers.
	QueuedTokens       int64 `json:"queued_tokens"`
	QueuedDiskTokens   int64 `json:"-"`
	QueuedObjectTokens int64 `json:"-"`
	// FrontTokens, FrontDiskTokens and FrontObjectTokens are the part that belongs to the oldest of the
	// requests. FrontAge is how long it has been the oldest: an engine serves prompts one after the
	// other, so that this much of it is done.
	FrontTokens       int64         `json:"-"`
	FrontDiskTokens   int64         `json:"-"`
	FrontObjectTokens int64         `json:"-"`
	FrontAge          time.Duration `json:"-"`
	// FrontSilent says that the end of that request's prefill may not be reported, so that its age does not show that it
	// is late: it may be in decode.
	FrontSilent bool `json:"-"`
	// PromptTokens counts the prompt tokens of all active requests, UncachedTokens those that were not
	// cached when the request was placed, OutputTokens what they have generated.
	PromptTokens   int64 `json:"prompt_tokens"`
	UncachedTokens int64 `json:"-"`
	OutputTokens   int64 `json:"output_tokens"`
	// DecodeBlocks is the number of token blocks that active requests hold; see [Options.AssumeKVReuse].
	DecodeBlocks int64 `json:"decode_blocks"`
	// RecentTokens is the sum of uncached tokens of requests placed lately, each halved every
	// 10 minutes.
	RecentTokens float64 `json:"recent_tokens"`
	// RecentDiskTokens and RecentObjectTokens are such sums of the tokens to be loaded from these tiers, RecentRequests
	// that of requests. RecentSeconds is the sum of the seconds since the rank is known, weighted alike: the sums
	// over it are rates.
	RecentDiskTokens   float64 `json:"-"`
	RecentObjectTokens float64 `json:"-"`
	RecentRequests     float64 `json:"-"`
	RecentSeconds      float64 `json:"-"`
}

// ActiveTokens is the number of tokens of the active requests, prompts and output.
func (r *Rank) ActiveTokens() int64 { return r.PromptTokens + r.OutputTokens }

// Place adds a request of the given prompt tokens to r as [Tracker.Add] would, but counts all its blocks,
// also those that it shares. With it a policy counts what it has placed of a batch.
func (r *Rank) Place(promptTokens, cachedTokens, diskTokens, objectTokens, blockSize int) {
	uncached := int64(max(promptTokens-cachedTokens, 0))
	if r.QueuedRequests == 0 {
		r.FrontTokens, r.FrontDiskTokens, r.FrontObjectTokens, r.FrontAge = uncached, int64(diskTokens), int64(objectTokens), 0
	}
	r.ActiveRequests++
	r.QueuedRequests++
	r.QueuedTokens += uncached
	r.QueuedDiskTokens += int64(diskTokens)
	r.QueuedObjectTokens += int64(objectTokens)
	r.PromptTokens += int64(promptTokens)
	r.UncachedTokens += uncached
	r.DecodeBlocks += int64(blocksOf(promptTokens, blockSize))
	r.RecentTokens += float64(uncached)
	r.RecentDiskTokens += float64(diskTokens)
	r.RecentObjectTokens += float64(objectTokens)
	r.RecentRequests++
}

// blocksOf returns the number of blocks that tokens fill; the last one may be partial.
func blocksOf(tokens, blockSize int) int {
	return (tokens + blockSize - 1) / blockSize
}

type rankState struct {
	load       Rank
	recentAt   time.Time               // when load.RecentTokens was right
	queue      list                    // requests that wait or are in prefill
	frontSince time.Time               // since when the first of them has been the first
	shared     map[connector.Key]int32 // number of requests that hold each counted key
}

// recentHalfLife is much longer than a prefill, and much shorter than a change of the traffic.
const recentHalfLife = 10 * time.Minute

// decay brings the recent sums up to date.
func (r *rankState) decay(now time.Time) {
	d := now.Sub(r.recentAt)
	if d <= 0 {
		return
	}
	left, l := math.Exp2(-float64(d)/float64(recentHalfLife)), &r.load
	l.RecentTokens *= left
	l.RecentDiskTokens *= left
	l.RecentObjectTokens *= left
	l.RecentRequests *= left
	l.RecentSeconds += float64((1 - left) * (recentHalfLife.Seconds()/math.Ln2 - l.RecentSeconds))
	r.recentAt = now
}

// enqueue appends e to the requests that wait or are in prefill.
func (r *rankState) enqueue(e *entry, now time.Time) {
	e.prefill = true
	if r.queue.first == nil {
		r.frontSince = now
	}
	r.queue.append(e)
	r.load.QueuedRequests++
	r.load.QueuedTokens += e.uncached
	r.load.QueuedDiskTokens += e.disk
	r.load.QueuedObjectTokens += e.object
}

func (r *rankState) dequeue(e *entry, now time.Time) {
	if !e.prefill {
		return
	}
	e.prefill = false
	if r.queue.first == e {
		r.frontSince = now
	}
	r.queue.remove(e)
	r.load.QueuedRequests--
	r.load.QueuedTokens -= e.uncached
	r.load.QueuedDiskTokens -= e.disk
	r.load.QueuedObjectTokens -= e.object
}

// hold counts the keys of e, each once for the rank.
func (r *rankState) hold(e *entry) {
	for _, k := range e.keys {
		n := r.shared[k]
		if n == 0 {
			r.load.DecodeBlocks++
		}
		r.shared[k] = n + 1
	}
	r.load.DecodeBlocks += e.blocks
}

func (r *rankState) drop(e *entry) {
	for _, k := range e.keys {
		if n := r.shared[k]; n > 1 {
			r.shared[k] = n - 1
			continue
		}
		delete(r.shared, k)
		r.load.DecodeBlocks--
	}
	r.load.DecodeBlocks -= e.blocks
}

func (r *rankState) view(now time.Time) Rank {
	v := r.load
	if e := r.queue.first; e != nil {
		v.FrontTokens, v.FrontDiskTokens, v.FrontObjectTokens = e.uncached, e.disk, e.object
		v.FrontAge, v.FrontSilent = max(now.Sub(r.frontSince), 0), e.silent
	}
	return v
}
