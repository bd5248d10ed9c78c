package route

import (
	"math"
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

// Nobody is going to say that the prefill of such a request is over: that it has not been said does not make the rank late.
func TestARequestOfWhichNobodyTellsIsNeverLate(t *testing.T) {
	for _, c := range []struct {
		what   string
		speed  float64
		tokens int
		kind   Request
		after  time.Duration
		want   float64
	}{
		{"not streamed", 0, 8000, Request{Silent: true}, 300 * time.Millisecond, 0.5},
		{"not streamed", 0, 8000, Request{Silent: true}, 5 * time.Second, 0},
		{"not streamed", 0, 8000, Request{Silent: true}, 30 * time.Second, 0},
		{"not streamed, of known speed", 10000, 100, Request{Silent: true}, 900 * time.Millisecond, 0},
		{"maybe not reported", 0, 8000, Request{MaybeSilent: true}, 300 * time.Millisecond, 0.5},
		{"maybe not reported", 0, 8000, Request{MaybeSilent: true}, 30 * time.Second, 0},
		{"maybe not reported, of known speed", 10000, 100, Request{MaybeSilent: true}, 30 * time.Second, 0},
		{"streamed", 0, 8000, Request{}, 30 * time.Second, 29.2},
	} {
		now := time.Unix(1000, 0)
		r := newRouter(t, 0, func(o *Options) { o.Now = func() time.Time { return now } })
		r.cancel() // time is passed by hand
		_ = r.running.Wait()
		for i := range 2 {
			spec := rank(i)
			spec.Speeds.PrefillTokens = c.speed
			spec.Node, spec.NodeURL, spec.CacheModel = "n", "http://127.0.0.1:1", "m"
			add(t, r, spec)
		}
		req := free(prompt(1, c.tokens))
		req.Pin, req.Strict, req.Silent, req.MaybeSilent = 0, true, c.kind.Silent, c.kind.MaybeSilent
		ask(t, r, req)
		now = now.Add(c.after)
		other := free(prompt(2, 1000))
		other.Explain = true
		if got := ask(t, r, other).Scores[0].QueueSeconds; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s, %d tokens after %v: a queue of %v s, want %v", c.what, c.tokens, c.after, got, c.want)
		}
	}
}

// A request that may be silent differs in nothing but that: the end of its prefill can be reported, and the speed is learnt from it.
func TestAReportThatNobodyExpectedCounts(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRouter(t, 1, func(o *Options) { o.Now = func() time.Time { return now } })
	r.cancel()
	_ = r.running.Wait()
	req := free(prompt(1, 4000))
	req.MaybeSilent = true
	d := ask(t, r, req)
	now = now.Add(2 * time.Second)
	r.assumePrefilled(now)
	if info, _ := r.Rank(0); info.Load.QueuedRequests != 1 {
		t.Errorf("%+v", info.Load)
	}
	if !r.PrefillDone(d.Handle) {
		t.Error("the request is not known")
	}
	if info, _ := r.Rank(0); info.Load.QueuedRequests != 0 || info.Speed.PrefillTokens != 2000 {
		t.Errorf("%+v", info)
	}
}
