package route

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/router/policy"
)

// RouteAll decides several requests: out[i] and the i-th error are of reqs[i], as those of [Router.Route].
// A policy.Batcher gets all requests of a model at once, except that one that excludes ranks is placed by itself
// after them. Any other policy decides one after the other, each counting for those after it: first the
// requests with a strict pin, as no other rank will do for them, then the rest in the order given.
func (r *Router) RouteAll(ctx context.Context, reqs []Request, out []Decision) []error {
	jobs, open := make([]job, len(reqs)), make([]*job, 0, len(reqs))
	for i := range reqs {
		jobs[i] = job{req: &reqs[i], d: &out[i]}
		if r.begin(ctx, &jobs[i]) {
			open = append(open, &jobs[i])
		}
	}
	slices.SortStableFunc(open, func(a, b *job) int {
		return cmp.Or(strings.Compare(a.d.Model, b.d.Model), a.turn()-b.turn())
	})
	for len(open) > 0 {
		n := together(open)
		r.decide(open[:n])
		open = open[n:]
	}
	errs := make([]error, len(reqs))
	for i := range jobs {
		errs[i] = jobs[i].err
	}
	return errs
}

// turn orders the requests of one model.
func (j *job) turn() int {
	_, batches := j.to.pool.policy.(policy.Batcher)
	switch {
	case batches && len(j.req.Exclude) > 0:
		return 2
	case !batches && j.req.Strict && j.req.Pin != policy.NoPin:
		return 0
	}
	return 1
}

// together returns how many of the first jobs are decided at once.
func together(jobs []*job) int {
	p := jobs[0].to.pool
	n := 1
	if _, batches := p.policy.(policy.Batcher); batches && jobs[0].turn() == 1 {
		for n < len(jobs) && jobs[n].to.pool == p && jobs[n].turn() == 1 {
			n++
		}
	}
	return n
}
