package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/router/route"
)

// checker asks endpoints whether they are well and takes their ranks in and out.
type checker struct {
	router   *route.Router
	client   *http.Client
	path     string
	interval time.Duration
	backoff  time.Duration
	log      *slog.Logger
	wake     chan struct{}

	mu        sync.Mutex
	endpoints map[string]*endpoint
	running   sync.WaitGroup
}

// endpoint is what the checker knows of one.
type endpoint struct {
	next     time.Time
	wait     time.Duration // until the next check after a failure
	failures int
	well     bool
	checking bool
	suspect  bool // failed a request while it was being checked
}

// failuresUntilOut is how many checks in a row an endpoint that was well has to fail: one may be late.
// A failed request counts as one of them, or as all if nothing listens there.
const failuresUntilOut = 2

func newChecker(r *route.Router, to http.RoundTripper, o *Options) *checker {
	return &checker{
		router: r, client: &http.Client{Timeout: o.HealthTimeout, Transport: to}, path: o.HealthPath, interval: o.HealthInterval,
		backoff: o.HealthBackoff, log: o.Logger, wake: make(chan struct{}, 1), endpoints: map[string]*endpoint{},
	}
}

// run checks until ctx ends.
func (c *checker) run(ctx context.Context) {
	defer c.running.Wait()
	for ctx.Err() == nil {
		wait := c.begin(ctx, time.Now())
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-c.wake:
			select { // many checks end together
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// again makes run look at all endpoints now.
func (c *checker) again() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// begin starts the checks that are due and returns the time until the next one is.
func (c *checker) begin(ctx context.Context, now time.Time) (wait time.Duration) {
	wait = c.interval
	ranks := c.router.Endpoints()
	c.mu.Lock()
	defer c.mu.Unlock()
	for url := range c.endpoints {
		if _, ok := ranks[url]; !ok {
			delete(c.endpoints, url)
		}
	}
	for url, ids := range ranks {
		e := c.endpoints[url]
		if e == nil {
			e = &endpoint{next: now, wait: c.backoff}
			c.endpoints[url] = e
		}
		if e.well {
			for _, id := range ids { // a rank may have been added lately
				c.router.SetReady(id, true, "")
			}
		}
		if e.checking {
			continue
		}
		if due := e.next.Sub(now); due > 0 {
			wait = min(wait, due)
			continue
		}
		e.checking = true
		c.running.Go(func() { c.ended(url, e, c.check(ctx, url)) })
	}
	return max(wait, time.Millisecond)
}

// check asks an endpoint.
func (c *checker) check(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+c.path, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096)) // so that the connection is used again
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s%s: %s", url, c.path, resp.Status)
	}
	return nil
}

// ended counts the result of a check.
func (c *checker) ended(url string, e *endpoint, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := e.suspect && err == nil
	e.checking, e.suspect = false, false
	if !more {
		c.judge(url, e, err, 1)
	}
	c.again()
}

// failed counts a failed request to a rank. If nothing listens there, its endpoint is out at once. Otherwise it is
// checked now, and out if it fails the check: a connection may break because of the request.
func (c *checker) failed(rank int32, err error) {
	info, ok := c.router.Rank(rank) // endpoints that are not checked are not known
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.endpoints[info.Endpoint]
	if e == nil || !e.well {
		return
	}
	e.suspect = e.checking // a check that began earlier says nothing of this
	// Only a refusal: other reasons for not reaching it may lie with this machine.
	if errors.Is(err, syscall.ECONNREFUSED) {
		c.judge(info.Endpoint, e, err, failuresUntilOut)
	} else {
		e.failures, e.next = failuresUntilOut-1, time.Now()
	}
	c.again()
}

// judge takes the endpoint's ranks in or out. The caller holds mu.
func (c *checker) judge(url string, e *endpoint, err error, weight int) {
	now := time.Now()
	if err == nil {
		if !e.well {
			c.log.Info("an engine is ready", "endpoint", url)
		}
		*e = endpoint{next: now.Add(c.interval), wait: c.backoff, well: true, checking: e.checking}
		c.set(url, true, "")
		return
	}
	e.failures += weight
	e.next = now.Add(e.wait)
	e.wait = min(2*e.wait, max(maxHealthBackoff, c.backoff))
	if e.well && e.failures < failuresUntilOut {
		return
	}
	if !e.well && e.failures == weight { // the first check that it fails
		c.log.Warn("an engine cannot be used yet; it is tried again and again", "endpoint", url, "error", err,
			"remedy", "start it, or correct the rank's endpoint; it has to answer "+c.path+" with status 200")
	}
	if e.well {
		c.log.Warn("an engine fails and gets no requests until it is well again", "endpoint", url, "error", err)
	}
	e.well = false
	c.set(url, false, err.Error())
}

func (c *checker) set(url string, ready bool, why string) {
	for _, id := range c.router.Endpoints()[url] {
		c.router.SetReady(id, ready, why)
	}
}
