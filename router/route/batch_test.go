package route

import (
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
	"github.com/kvconn/kvconn/router/registry"
)

// routeAll decides requests together.
func routeAll(t *testing.T, r *Router, reqs ...Request) ([]Decision, []error) {
	t.Helper()
	out := make([]Decision, len(reqs))
	return out, r.RouteAll(t.Context(), reqs, out)
}

// of makes a router with a policy and n ranks that take at most maxActive requests.
func of(t *testing.T, name string, n, maxActive int) *Router {
	r := newRouter(t, 0, func(o *Options) {
		o.Policy = func() policy.Policy {
			p, err := byname.New(byname.Options{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	})
	for i := range n {
		spec := rank(i)
		spec.MaxActive = maxActive
		add(t, r, spec)
	}
	return r
}

// strictly pins a request.
func strictly(req Request, id int32) Request {
	req.Pin, req.Strict = id, true
	return req
}

// What was decided of a batch counts for the rest of it: load, and what will be cached.
func TestRequestsTogetherCountForEachOther(t *testing.T) {
	r := of(t, "cost", 4, 0)
	again := free(prompt(1, 4112))
	again.Explain = true
	out, _ := routeAll(t, r, free(prompt(1, 4096)), free(prompt(2, 4096)), free(prompt(3, 4096)), again)
	if a, b, c := out[0].Rank, out[1].Rank, out[2].Rank; a == b || b == c || c == a {
		t.Errorf("three prompts went to ranks %d, %d and %d of 4", a, b, c)
	}
	if got := out[3].Scores[out[0].Index].Prefix.GPU; got != 4096 {
		t.Errorf("%d tokens are expected where the same prompt was just sent", got)
	}
	if s := r.Stats(); s.InFlight != 4 || s.Reasons[policy.ReasonScore] != 4 {
		t.Errorf("%+v", s)
	}
}

func TestEachRequestHasItsOwnError(t *testing.T) {
	for _, name := range []string{"cost", "published/load"} {
		r := of(t, name, 2, 1)
		add(t, r, registry.Rank{ID: 7, Model: "n", Endpoint: "http://n"})
		other, unknown, long := free(prompt(5, 16)), free(prompt(1, 16)), free(nil)
		other.Model, unknown.Model, long.Tokens = "n", "x", 1<<30
		out, errs := routeAll(t, r, free(prompt(1, 16)), unknown, strictly(free(prompt(2, 16)), 0), long, free(prompt(3, 16)), other)
		if !errors.Is(errs[1], ErrUnknownModel) || !errors.Is(errs[3], ErrPromptTooLong) || errs[0] != nil || errs[2] != nil || errs[4] != nil {
			t.Errorf("%s: %v", name, errs)
		}
		// The strict pin goes first, and the last request finds no room.
		if out[0].Rank != 1 || out[2].Rank != 0 || out[4].Reason != policy.ReasonAllFull || out[5].Rank != 7 || out[5].Model != "n" {
			t.Errorf("%s: %+v", name, out)
		}
		for i, d := range out {
			if d.Placed() != (d.Handle != 0) || d.Placed() != r.Finish(d.Handle) {
				t.Errorf("%s: request %d: %+v", name, i, d)
			}
		}
	}
}

// The published router places the longest request of a batch first.
func TestAPublishedPolicySeesTheWholeBatch(t *testing.T) {
	reqs := []Request{free(prompt(1, 100)), free(prompt(2, 200)), free(prompt(3, 300)), free(prompt(4, 50))}
	for name, want := range map[string][4]int32{"published/load": {1, 1, 0, 0}, "round-robin": {0, 1, 0, 1}} {
		out, _ := routeAll(t, of(t, name, 2, 8), reqs...)
		var got [4]int32
		for i, d := range out {
			got[i] = d.Rank
		}
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A prefill that waited for another of its batch does not tell the rank's speed.
func TestSpeedsAreLearntFromTheFirstOfABatch(t *testing.T) {
	now := time.Unix(1000, 0)
	r := of(t, "published/load", 1, 0)
	r.opts.Now = func() time.Time { return now }
	r.cancel() // time is passed by hand
	_ = r.running.Wait()
	out, _ := routeAll(t, r, free(prompt(1, 4096)), free(prompt(2, 4096)))
	for _, d := range out {
		now = now.Add(time.Second)
		r.PrefillDone(d.Handle)
	}
	if info, _ := r.Rank(0); info.Speed.PrefillTokens != 4096 {
		t.Errorf("learnt %v tokens a second", info.Speed.PrefillTokens)
	}
}

// A request that excludes ranks does not exclude them for others.
func TestARequestThatExcludesRanksIsPlacedAlone(t *testing.T) {
	for _, name := range []string{"published/load", "cost"} {
		again := free(prompt(1, 16))
		again.Exclude = []int32{0}
		out, _ := routeAll(t, of(t, name, 2, 0), again, strictly(free(prompt(2, 16)), 0), again)
		if out[0].Rank != 1 || out[1].Rank != 0 || out[2].Rank != 1 {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// A pin that is not strict gives way to the conversation's rank, and the answer says so.
func TestAPinMissedForItsConversationIsNotFull(t *testing.T) {
	r := of(t, "conversation", 2, 8)
	req := free(prompt(1, 16))
	req.Conversation = "c"
	first := ask(t, r, req)
	req.Pin = 1 - first.Rank
	if d := ask(t, r, req); d.Rank != first.Rank || d.PinMissed != policy.ReasonConversation {
		t.Errorf("%+v after %+v", d, first)
	}
}
