package route

import (
	"testing"

	"github.com/kvconn/kvconn/router/feed"
)

// Half of the prompts that seem to be computed were in fact cached by an engine that tells nothing of it.
func TestCachedPromptsDoNotMakeASilentEngineFast(t *testing.T) {
	learn := func(r *rankState, seconds ...float64) float64 {
		for range 200 {
			for _, s := range seconds {
				r.learnPrefill(1000, s)
			}
		}
		return r.prefill.load()
	}
	if v := learn(new(rankState), 1, 0.04); v < 1000 || v > 2000 {
		t.Errorf("%.0f tokens a second, of a rank that computes 1,000", v)
	}
	if v := learn(new(rankState), 0.1); v < 9999 || v > 10001 {
		t.Errorf("%.0f tokens a second, of a rank that computes 10,000", v)
	}
	slow := new(rankState)
	slow.learnPrefill(1000, 2.5) // the first prompt compiles kernels
	for range firstSamples {
		slow.learnPrefill(1000, 0.1)
	}
	if v := slow.prefill.load(); v < 8000 {
		t.Errorf("%.0f tokens a second after a slow first prompt, of a rank that computes 10,000", v)
	}
	r := new(rankState)
	r.prefill.store(1000)
	if v := learn(r, 0.1); v < 9000 {
		t.Errorf("%.0f tokens a second, of a rank that has become ten times as fast", v)
	}
	if v := learn(&rankState{events: new(feed.Rank)}, 0.5, 0.25); v < 2500 || v > 3500 {
		t.Errorf("%.0f tokens a second, of a rank with events that computes 2,000 to 4,000", v)
	}
}
