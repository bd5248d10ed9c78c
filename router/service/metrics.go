package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/route"
)

// decisionTimes is how long decisions take, tokenizing apart.
type decisionTimes struct{ histogram prometheus.Histogram }

func newDecisionTimes() decisionTimes {
	return decisionTimes{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kvconn_router_decision_seconds", Help: "Time that decisions took, hashing and scores included, tokenizing not.",
		Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1},
	})}
}

// timed is the router with its decisions timed.
type timed struct {
	*route.Router
	times *decisionTimes
}

// Route is the router's.
func (t timed) Route(ctx context.Context, req *route.Request, d *route.Decision) error {
	start := time.Now()
	err := t.Router.Route(ctx, req, d)
	t.times.histogram.Observe(time.Since(start).Seconds())
	return err
}

// routeAll has a router decide requests together; each counts with the mean of their times.
func (t *decisionTimes) routeAll(ctx context.Context, r *route.Router, reqs []route.Request, out []route.Decision) []error {
	start := time.Now()
	errs := r.RouteAll(ctx, reqs, out)
	mean := time.Since(start).Seconds() / float64(len(reqs))
	for range reqs {
		t.histogram.Observe(mean)
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
