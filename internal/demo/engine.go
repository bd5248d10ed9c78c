// Package demo shows kvconn's main job on one machine: a daemon and the built-in engine
// as separate processes, stopped and started again, and what the cache is worth.
package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// maxLine bounds one line of the engine process's protocol.
const maxLine = 4 << 20

// seed draws the demo model's weights.
const seed = 1

// blockSize is the number of tokens in a block.
const blockSize = 16

// prompt asks the engine process for a completion; one JSON object a line.
type prompt struct {
	ID        string   `json:"id"`
	Tokens    []uint32 `json:"tokens"`
	MaxTokens int      `json:"max_tokens"`
	// NoLoad keeps the cache out of the answer's way: what comes is the cold time.
	NoLoad bool `json:"no_load"`
	// Trace is the W3C traceparent of the request, if it has one.
	Trace string `json:"traceparent"`
}

// completion is the engine process's answer. Its first line, with Ready set, says that
// it serves.
type completion struct {
	Ready      bool     `json:"ready,omitempty"`
	Error      string   `json:"error,omitempty"`
	ID         string   `json:"id,omitempty"`
	Tokens     []uint32 `json:"tokens,omitempty"`
	GPUTokens  int      `json:"gpu_tokens,omitempty"`
	DiskTokens int      `json:"disk_tokens,omitempty"`
	Recomputed int      `json:"recomputed,omitempty"`
	TTFTS      float64  `json:"ttft_s,omitempty"`
}

// EngineOptions configure [ServeEngine].
type EngineOptions struct {
	// Socket is the daemon's.
	Socket string
	// PrefixCaching is the engine's own, in its memory.
	PrefixCaching bool
	Logger        *slog.Logger
}

// ServeEngine is the body of the engine process: it reads prompts from in, one JSON
// object a line, and writes completions to out, until in ends or ctx does.
func ServeEngine(ctx context.Context, o EngineOptions, in io.Reader, out io.Writer) error {
	return serveEngine(ctx, o, model.Demo(seed), in, out)
}

func serveEngine(ctx context.Context, o EngineOptions, m model.Config, in io.Reader, out io.Writer) (err error) {
	e, err := engine.New(engine.Options{Model: m, BlockSize: blockSize, PrefixCaching: o.PrefixCaching, MaxBatchedTokens: 512})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	co := client.Options{
		Socket: o.Socket, Engine: fmt.Sprintf("demo-%d", os.Getpid()), Name: "kvconn-engine/2", Manifest: e.Manifest(), Logger: o.Logger,
		// The demo shows what the cache does, even on a busy machine.
		CallTimeout: 30 * time.Second,
	}
	scheduler, err := client.NewScheduler(co)
	if err != nil {
		return err
	}
	defer scheduler.Close()
	worker, err := client.NewWorker(co, 0, e.Layout(0), []*os.File{e.File(0)})
	if err != nil {
		return err
	}
	defer worker.Close()
	if err := errors.Join(scheduler.Connect(ctx), worker.Connect(ctx)); err != nil {
		return err
	}
	e.Attach(scheduler, worker)
	enc := json.NewEncoder(out)
	if err := enc.Encode(completion{Ready: true}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if err := enc.Encode(complete(ctx, e, lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

func complete(ctx context.Context, e *engine.Engine, line []byte) completion {
	var p prompt
	if err := json.Unmarshal(line, &p); err != nil {
		return completion{Error: err.Error()}
	}
	results, err := e.Run(ctx, []engine.Request{{ID: p.ID, Prompt: p.Tokens, MaxTokens: p.MaxTokens, NoLoad: p.NoLoad, Trace: p.Trace}})
	if err != nil {
		return completion{ID: p.ID, Error: err.Error()}
	}
	r := &results[0]
	return completion{
		ID: r.ID, Tokens: r.Tokens, GPUTokens: r.LocalCachedTokens, DiskTokens: r.CachedTokens,
		Recomputed: r.RecomputedTokens, TTFTS: r.TTFT.Seconds(),
	}
}
