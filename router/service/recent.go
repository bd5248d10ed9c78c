package service

import (
	"sync"
	"time"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

// recentDecisions is how many decisions are remembered: a screen or two.
const recentDecisions = 50

// RecentDecision is one decision that was made a while ago.
type RecentDecision struct {
	// AgeS is how long ago, in seconds.
	AgeS float64 `json:"age_s"`
	// Model is that of the ranks. Rank is the chosen one, -1 if there is none.
	Model  string        `json:"model"`
	Rank   int32         `json:"rank"`
	Reason policy.Reason `json:"reason"`
	// Error is why the request could not be decided at all, "" if it was.
	Error string `json:"error,omitempty"`
	// PromptTokens is the length of the prompt. CachedTokens of them were not to be computed: those in the rank's GPU, and what
	// was to be loaded from disk and bucket.
	PromptTokens int   `json:"prompt_tokens"`
	CachedTokens int32 `json:"cached_tokens"`
	GPUTokens    int32 `json:"gpu_tokens"`
	LoadDisk     int32 `json:"load_disk_tokens"`
	LoadObject   int32 `json:"load_object_tokens"`
}

// RecentDecisions is the answer of GET /v1/decisions.
type RecentDecisions struct {
	// Decisions are the last ones, the newest first.
	Decisions []RecentDecision `json:"decisions"`
}

// recent remembers the last decisions. It is safe for concurrent use, and noting one allocates nothing unless it is an error.
type recent struct {
	mu   sync.Mutex
	at   [recentDecisions]time.Time
	list [recentDecisions]RecentDecision
	n    uint64
}

// note remembers a decision, and the error that there was instead.
func (r *recent) note(now time.Time, d *route.Decision, err error) {
	e := RecentDecision{
		Model: d.Model, Rank: d.Rank, Reason: d.Reason, PromptTokens: d.PromptTokens, CachedTokens: d.UseTokens,
		GPUTokens: d.UseTokens - d.LoadDisk - d.LoadObject, LoadDisk: d.LoadDisk, LoadObject: d.LoadObject,
	}
	if err != nil {
		e.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.n % recentDecisions
	r.at[i], r.list[i] = now, e
	r.n++
}

// answer lists what is remembered.
func (r *recent) answer(now time.Time) RecentDecisions {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(r.n, recentDecisions)
	a := RecentDecisions{Decisions: make([]RecentDecision, n)}
	for k := range a.Decisions {
		i := (r.n - 1 - uint64(k)) % recentDecisions
		a.Decisions[k] = r.list[i]
		a.Decisions[k].AgeS = now.Sub(r.at[i]).Seconds()
	}
	return a
}
