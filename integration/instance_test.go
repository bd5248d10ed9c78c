package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// generated is the number of tokens that tests have generated.
const generated = 8

// instance is an engine that is connected to a node.
type instance struct {
	*engine.Engine
	t       *testing.T
	calls   *calls
	closers []func()
}

// setup says how an instance differs from the usual one.
type setup struct {
	engine  func(*engine.Options)
	declare func(*connector.Manifest)
	client  func(*client.Options)
	// at is called before and after the calls of the connector; see the points.
	at func(point string)
}

// engineOptions is the small model that tests run on.
func engineOptions(change func(*engine.Options)) engine.Options {
	o := engine.Options{Model: model.Tiny(1), BlockSize: 8, Blocks: 256}
	if change != nil {
		change(&o)
	}
	return o
}

// newInstance starts an engine. It does not need the daemon to be there.
func newInstance(t *testing.T, n *node, change func(*engine.Options)) *instance {
	t.Helper()
	return newInstanceWith(t, n, setup{engine: change})
}

// newInstanceOf starts an engine that declares another namespace than its own.
func newInstanceOf(t *testing.T, n *node, change func(*engine.Options), declare func(*connector.Manifest)) *instance {
	t.Helper()
	return newInstanceWith(t, n, setup{engine: change, declare: declare})
}

func newInstanceWith(t *testing.T, n *node, s setup) *instance {
	t.Helper()
	o := engineOptions(s.engine)
	e, err := engine.New(o)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{Engine: e, t: t, calls: &calls{at: s.at}}
	t.Cleanup(i.close)
	if n != nil {
		if err := i.connect(n.socket, &o, &s); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// callLimit is the deadline of a call to a daemon that is there: only a broken one misses it.
const callLimit = 30 * time.Second

// clientOptions are those of an engine's clients. An engine in TensorRT-LLM's order has no
// way to report a failed load.
func clientOptions(socket, id string, e *engine.Engine, o *engine.Options) client.Options {
	return client.Options{
		Socket: socket, Engine: id, Manifest: e.Manifest(), Handoff: o.Order == engine.TensorRTLLM,
		CallTimeout: callLimit, RetryInterval: time.Millisecond,
	}
}

// connect attaches the clients of scheduler and workers, with the calls watched, or has
// the ranks' processes connect.
func (i *instance) connect(socket string, o *engine.Options, s *setup) error {
	co := clientOptions(socket, fmt.Sprintf("%s-%p", i.t.Name(), i.Engine), i.Engine, o)
	if s.declare != nil {
		s.declare(&co.Manifest)
	}
	if s.client != nil {
		s.client(&co)
	}
	if len(o.RankCommand) > 0 {
		return i.Connect(i.t.Context(), co)
	}
	scheduler, err := engine.NewSchedulerClient(co)
	if err != nil {
		return err
	}
	i.closers = append(i.closers, scheduler.Close)
	var workers []engine.WorkerConnector
	for rank := range co.Manifest.Ranks() {
		w, err := engine.NewWorkerClient(co, rank, i.Layout(rank), []*os.File{i.File(rank)})
		if err != nil {
			return err
		}
		i.closers = append(i.closers, w.Close)
		// As a real engine does before it serves: without memory there is nothing to copy
		// what is handed over to.
		_ = w.Connect(i.t.Context())
		workers = append(workers, &watchedWorker{w, i.calls, rank})
	}
	i.Attach(&watchedScheduler{scheduler, i.calls}, workers...)
	return nil
}

// close ends the engine process, as far as the daemon can tell.
func (i *instance) close() {
	if i.Engine == nil {
		return
	}
	for _, c := range i.closers {
		c()
	}
	if err := i.Close(); err != nil {
		i.t.Error(err)
	}
	i.Engine = nil
}

// run serves prompts together and returns their results.
func (i *instance) run(name string, prompts [][]uint32) []engine.Result {
	i.t.Helper()
	return i.serve(requestsOf(name, prompts)...)
}

// serve serves requests together and returns their results.
func (i *instance) serve(requests ...engine.Request) []engine.Result {
	i.t.Helper()
	results, err := i.Run(i.t.Context(), requests)
	if err != nil {
		i.t.Fatal(err)
	}
	return results
}

func requestsOf(name string, ps [][]uint32) []engine.Request {
	var out []engine.Request
	for k, p := range ps {
		out = append(out, engine.Request{ID: fmt.Sprintf("%s-%d", name, k), Prompt: p, MaxTokens: generated})
	}
	return out
}

// prompts makes n prompts that share a prefix.
func prompts(seed, n int) [][]uint32 {
	text := func(words int, salt int) string {
		var b strings.Builder
		for w := range words {
			fmt.Fprintf(&b, "%x ", (w+1)*(salt+7919)%65521)
		}
		return b.String()
	}
	shared := text(20, seed)
	out := make([][]uint32, n)
	for k := range out {
		out[k] = engine.EncodeText(shared + text(4+3*k, 1000*seed+k+1))
	}
	return out
}

// reference is what an engine without kvconn answers.
func reference(t *testing.T, change func(*engine.Options), ps [][]uint32) []engine.Result {
	t.Helper()
	alone := newInstance(t, nil, func(o *engine.Options) {
		if change != nil {
			change(o)
		}
		o.RankCommand = nil
	})
	defer alone.close()
	return alone.run("reference", ps)
}

// same compares tokens and the logits that they were drawn from; it is the one thing that
// must hold in every test.
func same(t *testing.T, what string, got, want []engine.Result) {
	t.Helper()
	if d := difference(got, want); d != "" {
		t.Fatalf("%s: %s", what, d)
	}
}

// difference says which answer is not what it should be, "" if all are.
func difference(got, want []engine.Result) string {
	for k := range want {
		g, w := &got[k], &want[k]
		if !slices.Equal(g.Tokens, w.Tokens) || g.Logits != w.Logits {
			return fmt.Sprintf("prompt %d answers %v (logits %x), want %v (%x); %d tokens cached, %d recomputed",
				k, g.Tokens, g.Logits, w.Tokens, w.Logits, g.CachedTokens, g.RecomputedTokens)
		}
	}
	return ""
}

// cached adds up the tokens that came from kvconn.
func cached(rs []engine.Result) int {
	sum := 0
	for _, r := range rs {
		sum += r.CachedTokens
	}
	return sum
}

// recomputed adds up the tokens whose load failed.
func recomputed(rs []engine.Result) int {
	sum := 0
	for _, r := range rs {
		sum += r.RecomputedTokens
	}
	return sum
}

// whole is the number of tokens of a prompt that can come from kvconn.
func whole(prompt []uint32, blockSize int) int { return (len(prompt) - 1) / blockSize * blockSize }
