package enginebench

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// restarting refuses requests while it is down, as an engine does that is started again.
type restarting struct {
	*openAI
	down    atomic.Bool
	refused atomic.Int32
}

func newRestarting(t *testing.T, log *[]string) (*restarting, string) {
	t.Helper()
	s := &restarting{openAI: newOpenAI(t, "a", "", log)}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			s.refused.Add(1)
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return s, front.URL
}

func TestPromptsAreAskedAgainOnceTheEngineIsBack(t *testing.T) {
	var log []string
	s, url := newRestarting(t, &log)
	r, err := Run(t.Context(), Options{
		Engine: Endpoint{URL: url}, Tokens: []int{100}, Prompts: 2, Pause: -1, Seed: 7,
		Between: func(context.Context) error {
			if len(log) != 2+2 {
				t.Errorf("called after %d requests", len(log))
			}
			s.down.Store(true)
			go func() {
				for s.refused.Load() < 2 {
					time.Sleep(time.Millisecond)
				}
				s.down.Store(false)
			}()
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Two requests warm up what has started, and they are none of the prompts.
	if len(log) != 2+2+2+2 || len(s.seen) != 2+2+2 || r.Lengths[0].Engine.AgainCached != 0.5 || !r.Restarted {
		t.Errorf("%v, %d prompts, %+v", log, len(s.seen), r)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "--between") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestAnEngineThatDoesNotComeBackIsAnError(t *testing.T) {
	t.Parallel()
	var log []string
	s, url := newRestarting(t, &log)
	o := Options{
		Engine: Endpoint{URL: url}, Tokens: []int{100}, Prompts: 1, Pause: -1, Timeout: 5 * time.Second,
		Between: func(context.Context) error { s.down.Store(true); return nil },
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not back") || !strings.Contains(err.Error(), "503") {
		t.Errorf("%v", err)
	}
	s.down.Store(false)
	failed := errors.New("exit status 5")
	o.Between = func(context.Context) error { return failed }
	if _, err := Run(t.Context(), o); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Timeout = time.Hour
	o.Between = func(context.Context) error { s.down.Store(true); cancel(); return nil }
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
