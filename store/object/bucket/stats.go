package bucket

import (
	"context"
	"maps"
	"sync"
)

// Stats is what was asked of a bucket since it was opened. The tags are those of package counters.
type Stats struct {
	// Requests were sent, by kind: what a provider bills. Errors are attempts that failed, by cause,
	// beside those whose caller left.
	Requests map[string]uint64 `json:"requests" metric:"requests_total" label:"kind" help:"Requests to the bucket."`
	Errors   map[string]uint64 `json:"errors" metric:"errors_total" label:"cause" help:"Requests to the bucket that failed; a missing object is one."`
	// ReadBytes and WrittenBytes are bytes of objects, those of failed attempts included.
	ReadBytes    uint64 `json:"read_bytes" metric:"read_bytes_total" help:"Bytes of objects read from the bucket."`
	WrittenBytes uint64 `json:"written_bytes" metric:"written_bytes_total" help:"Bytes of objects written to the bucket."`
	// Retries are attempts after the first.
	Retries uint64 `json:"retries" metric:"retries_total" help:"Requests to the bucket that were sent again."`
	// BreakerOpen says that the bucket does not work, and is not asked.
	BreakerOpen bool `json:"breaker_open" metric:"breaker_open" help:"1 while the bucket does not work and is not asked."`
}

// Stats returns the counters.
func (b *Bucket) Stats() Stats {
	st := b.counts.copy()
	st.BreakerOpen = !b.Available()
	return st
}

type counts struct {
	mu sync.Mutex
	Stats
}

func (c *counts) copy() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.Stats
	st.Requests, st.Errors = maps.Clone(c.Requests), maps.Clone(c.Errors)
	return st
}

func (c *counts) request(k Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Requests == nil {
		c.Requests = make(map[string]uint64)
	}
	c.Requests[string(k)]++
}

func (c *counts) failed(cause error) {
	if cause == context.Canceled {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Errors == nil {
		c.Errors = make(map[string]uint64)
	}
	c.Errors[causeName(cause)]++
}

func (c *counts) read(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ReadBytes += uint64(n)
}

func (c *counts) wrote(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.WrittenBytes += uint64(n)
}

func (c *counts) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Retries++
}
