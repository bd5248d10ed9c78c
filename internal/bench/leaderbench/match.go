// Package leaderbench measures the leader on a store with millions of records.
package leaderbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store/disk"
)

// Options say what [Match] measures.
type Options struct {
	// Dir is where the temporary store is made and removed again.
	Dir string
	// Records is the number of records, Tokens the length of the prompt matched. Default
	// 5 million and 131,072.
	Records int
	Tokens  int
	// Rounds is the number of matches that are timed. Default 200.
	Rounds int
	// Open opens an empty store in dir with room for the given number of records of PayloadBytes. The
	// default is [storebench.OpenSparse], which needs no disk for payloads.
	Open func(ctx context.Context, dir string, records int) (*disk.Store, error)
	// Progress, if not nil, is called now and then with the records written.
	Progress func(records int)
}

// PayloadBytes is the size of each record's payload.
const PayloadBytes = 4 << 10

const (
	blockSize  = 16
	writeBatch = 2048
	// remembered is the number of requests that the leader follows at most.
	remembered = 8
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.Records == 0 {
		o.Records = 5_000_000
	}
	if o.Tokens == 0 {
		o.Tokens = 131_072
	}
	if o.Rounds == 0 {
		o.Rounds = 200
	}
	if o.Open == nil {
		o.Open = storebench.OpenSparse
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Tokens < 2*blockSize || o.Tokens >= connector.MaxTokens:
		return fmt.Errorf("bench leader: %d tokens: want %d to %d", o.Tokens, 2*blockSize, connector.MaxTokens-1)
	case o.Records < o.Tokens/blockSize:
		return fmt.Errorf("bench leader: %d records: at least one prompt of %d", o.Records, o.Tokens/blockSize)
	case o.Rounds < 1:
		return errors.New("bench leader: no rounds")
	}
	return nil
}

// Result is what [Match] measured.
type Result struct {
	Records int `json:"records"`
	Tokens  int `json:"tokens"`
	// MatchSeconds is the median time to match a prompt of Tokens tokens, all of whose
	// blocks are stored, as a new request: hashing, lookup and lease. MatchMinSeconds and
	// MatchP99Seconds are the shortest and the 99th percentile.
	MatchSeconds    float64 `json:"match_s"`
	MatchMinSeconds float64 `json:"match_min_s"`
	MatchP99Seconds float64 `json:"match_p99_s"`
	// AllocsPerMatch is the least number of objects allocated during a match: what a match
	// itself allocates it always does, what the store does beside it comes and goes.
	AllocsPerMatch float64 `json:"allocs_per_match"`
	BuildSeconds   float64 `json:"build_s"`
}

// Match fills a store with records, prompt by prompt, and matches new requests for them.
func Match(ctx context.Context, o Options) (Result, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp(o.Dir, "kvconn-bench-leader-")
	if err != nil {
		return Result{}, fmt.Errorf("make a directory for temporary files: %w", err)
	}
	b := &bench{o: o, manifest: manifest()}
	b.res.Records, b.res.Tokens = o.Records, o.Tokens
	err = b.run(ctx, filepath.Join(dir, "store"))
	return b.res, errors.Join(err, os.RemoveAll(dir))
}

type bench struct {
	o        Options
	manifest *connector.Manifest
	ns       connector.NamespaceDigest
	res      Result
}

func (b *bench) run(ctx context.Context, dir string) error {
	s, err := b.o.Open(ctx, dir, b.o.Records)
	if err != nil {
		return err
	}
	began := time.Now()
	if err = b.build(ctx, s); err == nil {
		b.res.BuildSeconds = time.Since(began).Seconds()
		err = b.measure(ctx, s)
	}
	return errors.Join(err, s.Close())
}

// prompt is a prompt of as many tokens as are matched, and one that ends no block.
func (b *bench) prompt(n int, into []uint32) []uint32 {
	into = into[:0]
	for i := range b.o.Tokens {
		into = append(into, uint32(i*7+n))
	}
	return append(into, 0)
}

// measure times matches of new requests and counts their allocations.
func (b *bench) measure(ctx context.Context, s *disk.Store) error {
	l, err := leader.New(leader.Options{Namespace: b.ns, Manifest: b.manifest, MaxRequests: remembered}, s)
	if err != nil {
		return err
	}
	defer l.Close()
	m := &matcher{bench: b, leader: l, prompts: b.o.Records / (b.o.Tokens / blockSize)}
	for range 2 * remembered { // until the memory of requests is used again
		if err := m.next(ctx); err != nil {
			return err
		}
	}
	if err := s.Sync(ctx); err != nil {
		return err
	}
	runtime.GC()
	times := make([]float64, 0, b.o.Rounds)
	var before, after runtime.MemStats
	mallocs := make([]uint64, 0, b.o.Rounds)
	for range b.o.Rounds {
		m.prepare()
		runtime.ReadMemStats(&before)
		began := time.Now()
		err := m.match(ctx)
		times = append(times, time.Since(began).Seconds())
		runtime.ReadMemStats(&after)
		mallocs = append(mallocs, after.Mallocs-before.Mallocs)
		if err = errors.Join(err, m.finish(ctx)); err != nil {
			return err
		}
	}
	slices.Sort(times)
	slices.Sort(mallocs)
	b.res.MatchSeconds, b.res.MatchMinSeconds, b.res.MatchP99Seconds = times[len(times)/2], times[0], times[len(times)*99/100]
	b.res.AllocsPerMatch = float64(mallocs[0])
	return nil
}

// matcher matches one prompt after the other, each as a new request.
type matcher struct {
	*bench
	leader  *leader.Leader
	prompts int
	round   int
	m       connector.MatchRequest
}

func (m *matcher) prepare() {
	m.round++
	m.m.Request = "request-" + strconv.Itoa(m.round)
	m.m.Tokens = m.prompt(int(uint64(m.round)*0x9E3779B97F4A7C15>>33%uint64(m.prompts)), m.m.Tokens)
}

func (m *matcher) match(ctx context.Context) error {
	offer, err := m.leader.Match(ctx, &m.m)
	if want := m.o.Tokens / blockSize * blockSize; err == nil && offer.Tokens != want {
		err = fmt.Errorf("bench leader: offer of %d tokens, want %d", offer.Tokens, want)
	}
	return err
}

func (m *matcher) finish(ctx context.Context) error {
	_, err := m.leader.Step(ctx, &connector.StepRequest{Finished: []string{m.m.Request}})
	return err
}

func (m *matcher) next(ctx context.Context) error {
	m.prepare()
	return errors.Join(m.match(ctx), m.finish(ctx))
}
