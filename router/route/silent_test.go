package route

import (
	"testing"
	"time"
)

// The answer of a request that does not stream says nothing of its prefill. Where the speed is known it does
// not count as queued until it has finished; where it is not, nothing is guessed.
func TestAPrefillOfWhichNobodyTellsIsTakenForDone(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRouter(t, 0, func(o *Options) { o.Now = func() time.Time { return now } })
	r.cancel() // time is passed by hand
	_ = r.running.Wait()
	known, unknown := rank(0), rank(1)
	known.Speeds.PrefillTokens = 1000
	known.Speeds.DiskBytes, known.Speeds.BytesPerToken = 1e6, 1000
	add(t, r, known, unknown)
	queued := func() (n [2]int) {
		for i := range n {
			info, _ := r.Rank(int32(i))
			n[i] = info.Load.QueuedRequests
		}
		return n
	}
	pass := func(d time.Duration) {
		now = now.Add(d)
		r.assumePrefilled(now)
	}
	place := func(id int32, silent bool) uint64 {
		req := free(prompt(int(id), 4000))
		req.Pin, req.Strict, req.Silent = id, true, silent
		return ask(t, r, req).Handle
	}
	first := place(0, true)
	place(0, false)
	place(1, true)
	pass(7900 * time.Millisecond)
	if q := queued(); q != [2]int{2, 1} {
		t.Errorf("after less than twice 4 s: %v queued", q)
	}
	pass(200 * time.Millisecond)
	if q := queued(); q != [2]int{1, 1} {
		t.Errorf("after twice 4 s: %v queued, want the one that is to be reported and the one of unknown speed", q)
	}
	if info, _ := r.Rank(0); info.Load.ActiveRequests != 2 {
		t.Errorf("%+v", info.Load)
	}
	if info, _ := r.Rank(1); info.Speed.PrefillTokens != 0 {
		t.Errorf("a speed was learnt from a guess: %+v", info.Speed)
	}
	// It counts as heard of by then.
	pass(4*time.Minute + 55*time.Second)
	r.flights.sweep(now.Add(-r.opts.Load.TTL), nil)
	if !r.Finish(first) {
		t.Error("the request was taken for lost")
	}
}
