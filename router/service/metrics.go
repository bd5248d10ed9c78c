package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/route"
)

// timed is a router that measures how long its decisions take, tokenizing apart.
type timed struct {
	*route.Router
	times prometheus.Histogram
}

func newTimed(r *route.Router) timed {
	return timed{r, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kvconn_router_decision_seconds", Help: "Time that decisions took, hashing and scores included, tokenizing not.",
		Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1},
	})}
}

// Route is the router's.
func (t timed) Route(ctx context.Context, req *route.Request, d *route.Decision) error {
	start := time.Now()
	err := t.Router.Route(ctx, req, d)
	t.times.Observe(time.Since(start).Seconds())
	return err
}

// RouteAll is the router's; each request counts with the mean of their times.
func (t timed) RouteAll(ctx context.Context, reqs []route.Request, out []route.Decision) []error {
	start := time.Now()
	errs := t.Router.RouteAll(ctx, reqs, out)
	mean := time.Since(start).Seconds() / float64(len(reqs))
	for range reqs {
		t.times.Observe(mean)
	}
	return errs
}

// byState counts feeds by their state, each of which there is.
func byState[T any](feeds []T, state func(*T) feed.State) map[feed.State]int {
	n := map[feed.State]int{feed.StateConnecting: 0, feed.StateSynced: 0, feed.StateStale: 0, feed.StateRefused: 0}
	for i := range feeds {
		n[state(&feeds[i])]++
	}
	return n
}
