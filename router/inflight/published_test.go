package inflight

import "testing"

// The published routers' rank states that are about load, by name. In transfer is a request whose prefix is
// on its way to the rank, retiring one whose last token is out and which is finished here.
func TestPublishedRankStates(t *testing.T) {
	for name, c := range map[string]struct {
		active, retiring          []Request
		requests                  int
		promptTokens, uncachedAll int64
	}{
		"kv_load_clamps": {
			active:   []Request{{PromptTokens: 100, CachedTokens: 120}, {PromptTokens: 50, CachedTokens: 10}},
			requests: 2, promptTokens: 150, uncachedAll: 40,
		},
		"kv_in_transfer_counted": {
			active:   []Request{{PromptTokens: 100}, {PromptTokens: 80, CachedTokens: 10, DiskTokens: 10}},
			retiring: []Request{{PromptTokens: 200}},
			requests: 2, promptTokens: 180, uncachedAll: 170,
		},
		"default_load_ignores_cached": {
			active:   []Request{{PromptTokens: 100, CachedTokens: 90}, {PromptTokens: 200}},
			requests: 2, promptTokens: 300, uncachedAll: 210,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, _ := newTracker(t, Options{}, 0)
			id := uint64(0)
			place := func(list []Request) {
				for _, r := range list {
					id++
					r.ID = id
					add(t, tr, r)
				}
			}
			place(c.retiring)
			for range c.retiring {
				tr.Finish(id)
			}
			place(c.active)
			if l := loadOf(tr, 0); l.ActiveRequests != c.requests || l.PromptTokens != c.promptTokens || l.UncachedTokens != c.uncachedAll {
				t.Errorf("%+v", l)
			}
		})
	}
}
