// Package enginebench measures what a user of a cache feels: the time to the first token of prompts that an engine has
// not seen, and of the same prompts when they are asked again. It needs nothing but an OpenAI-compatible endpoint that
// streams, and may ask two of them in turn.
package enginebench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Endpoint is where an engine, or a router of engines, is asked.
type Endpoint struct {
	// URL is the base of the API, with or without /v1.
	URL string
	// Model is what requests name. Default: the first model that the endpoint lists.
	Model string
	// Key is the bearer token of requests, "" for none. It is sent nowhere else.
	Key string
}

// Options configure [Run].
type Options struct {
	Engine Endpoint
	// Compare, if not nil, is asked in turn with Engine.
	Compare *Endpoint
	// Chat asks /v1/chat/completions and not /v1/completions.
	Chat bool
	// Tokens are the lengths of prompts, as near as text can come to them. Default: 1,000 and 4,000.
	Tokens []int
	// Prompts is how many there are of each length. Default 8.
	Prompts int
	// OutputTokens is how many tokens each answer may have. Default 4.
	OutputTokens int
	// FillTokens are asked between the two passes, as prompts that count for nothing: they push the others out of what
	// caches above the one of interest can hold.
	FillTokens int
	// Pause is how long engines rest between the passes, so that saves end. Default 2 s; negative for none.
	Pause time.Duration
	// Between, if not nil, is called between the passes, after the pause: to start engines again, say. Endpoints are then waited
	// for, up to Timeout each.
	Between func(context.Context) error
	// Timeout bounds each request. Default 5 min.
	Timeout time.Duration
	// Seed makes the prompts. Equal seeds make equal prompts, which are not cold the second time.
	Seed uint64
	// Progress, if not nil, is told of each request that ended.
	Progress func(step string, done, total int)
}

// Bounds of options: what an endpoint is asked stays within reason, whatever is typed.
const (
	minTokens, maxTokens = 32, 4 << 20
	maxPrompts           = 10_000
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if len(o.Tokens) == 0 {
		o.Tokens = []int{1000, 4000}
	}
	for at, value := range map[*int]int{&o.Prompts: 8, &o.OutputTokens: 4} {
		if *at == 0 {
			*at = value
		}
	}
	for at, value := range map[*time.Duration]time.Duration{&o.Pause: 2 * time.Second, &o.Timeout: 5 * time.Minute} {
		if *at == 0 {
			*at = value
		}
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	for _, n := range o.Tokens {
		if n < minTokens || n > maxTokens {
			return fmt.Errorf("a prompt of %d tokens: %d to %d", n, minTokens, maxTokens)
		}
	}
	switch {
	case o.Prompts < 1 || o.Prompts > maxPrompts:
		return fmt.Errorf("%d prompts: 1 to %d", o.Prompts, maxPrompts)
	case o.OutputTokens < 1:
		return errors.New("an answer needs at least one token")
	case o.FillTokens < 0:
		return errors.New("tokens between the passes must be positive")
	case o.Timeout < 0:
		return errors.New("a request's timeout must be positive")
	}
	return nil
}

// words of the prompt by which the length of a token is learnt, and how often an endpoint is asked one: the first request of
// all may wait for the engine to compile.
const probeWords, probes = 256, 2

// target is an endpoint, with what is known of it.
type target struct {
	*client
	// stream makes the endpoint's prompts: no two endpoints are asked the same, as they may share a cache.
	stream        uint64
	wordsPerToken float64
}

// sample is one prompt of one endpoint, asked twice.
type sample struct{ cold, again answer }

// Run asks every prompt once, and then every prompt again. Times are those of a client: network, queue and prefill.
func Run(ctx context.Context, o Options) (*Result, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	endpoints := []Endpoint{o.Engine}
	if o.Compare != nil {
		endpoints = append(endpoints, *o.Compare)
	}
	b := &bench{o: &o, samples: make(map[place]*sample)}
	for i, e := range endpoints {
		t, err := b.open(ctx, e, uint64(i))
		if err != nil {
			return nil, err
		}
		b.targets = append(b.targets, t)
	}
	if err := b.pass(ctx, "cold prompts", func(s *sample) *answer { return &s.cold }); err != nil {
		return nil, err
	}
	if err := b.between(ctx); err != nil {
		return nil, err
	}
	if err := b.pass(ctx, "the same prompts again", func(s *sample) *answer { return &s.again }); err != nil {
		return nil, err
	}
	return b.result(), nil
}

// place is a prompt of a target.
type place struct{ target, length, prompt int }

type bench struct {
	o       *Options
	targets []*target
	samples map[place]*sample
}

// open learns the endpoint's model, and how its tokenizer divides words. The request also warms the endpoint up.
func (b *bench) open(ctx context.Context, e Endpoint, stream uint64) (*target, error) {
	b.o.Progress("asking "+e.URL, 0, 0)
	c, err := newClient(ctx, e, b.o)
	if err != nil {
		return nil, err
	}
	t := &target{client: c, stream: stream, wordsPerToken: 1}
	for n := range probes {
		a, err := t.ask(ctx, prompt(b.o.Seed, stream, kindProbe, n, probeWords))
		if err != nil {
			return nil, err
		}
		if a.promptTokens > 0 {
			t.wordsPerToken = float64(probeWords) / float64(a.promptTokens)
		}
	}
	return t, nil
}

// words is how many words have that many tokens.
func (t *target) words(tokens int) int { return max(1, int(float64(tokens)*t.wordsPerToken)) }

// pass asks all prompts in order; endpoints take turns to be first.
func (b *bench) pass(ctx context.Context, step string, into func(*sample) *answer) error {
	done := 0
	of := len(b.targets) * len(b.o.Tokens) * b.o.Prompts
	for n := range b.o.Prompts {
		for l, tokens := range b.o.Tokens {
			for turn := range b.targets {
				at := place{(turn + n) % len(b.targets), l, n}
				t := b.targets[at.target]
				a, err := t.ask(ctx, prompt(b.o.Seed, t.stream, kindPrompt, l<<32|n, t.words(tokens)))
				if err != nil {
					return err
				}
				if b.samples[at] == nil {
					b.samples[at] = new(sample)
				}
				*into(b.samples[at]) = a
				done++
				b.o.Progress(step, done, of)
			}
		}
	}
	return nil
}

// fills is the number of prompts between the passes, for each endpoint.
func (b *bench) fills() int {
	if b.o.FillTokens == 0 {
		return 0
	}
	return max(1, b.o.FillTokens/b.fillTokens())
}

// fillTokens is the length of a prompt between the passes.
func (b *bench) fillTokens() int {
	longest := 0
	for _, n := range b.o.Tokens {
		longest = max(longest, n)
	}
	return min(longest, max(b.o.FillTokens, minTokens))
}
