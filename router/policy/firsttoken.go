package policy

import "github.com/kvconn/kvconn/router/inflight"

// FirstToken returns how many seconds a prompt that d has placed should take to its first token: what the rank has to load and
// compute before it, and its own loads and tokens, one after the other. l is the rank's load without the request. A
// rank whose prefill speed is not measured counts as [State.PrefillSpeed] says; a tier of unknown speed costs no time.
func (s *State) FirstToken(l *inflight.Rank, d *Decision, promptTokens int) float64 {
	v := &s.Ranks[d.Index].Speeds
	speed := v.PrefillTokens
	if !positive(speed) {
		speed = s.PrefillSpeed()
	}
	seconds := float64(max(l.QueuedTokens+int64(promptTokens)-int64(d.UseTokens), 0)) / speed
	for _, tier := range [...]struct {
		tokens    int64
		bytesPerS float64
	}{
		{l.QueuedDiskTokens + int64(d.LoadDisk), v.DiskBytes}, {l.QueuedObjectTokens + int64(d.LoadObject), v.ObjectBytes},
	} {
		if positive(v.BytesPerToken) && positive(tier.bytesPerS) {
			seconds += times(float64(tier.tokens), v.BytesPerToken) / tier.bytesPerS
		}
	}
	return seconds
}

// Late is how many times as long as [State.FirstToken] says a prompt may take before it counts as computed without a report of
// it: engines compute several prompts at once, and speeds change.
const Late = 2
