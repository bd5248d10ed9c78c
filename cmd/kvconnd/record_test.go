package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/demo"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// A daemon records what the built-in engine asks for, and replay reads it: with the lengths of prompts and answers, and
// the blocks that prompts have in common, whether they were loaded or computed.
func TestReplayReadsWhatServeRecords(t *testing.T) {
	const blockTokens, prompts, promptTokens, common = 64, 3, 150, 128
	base := t.TempDir()
	file := filepath.Join(base, "trace.jsonl")
	c := new(cli)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log testlog.Text
	p, err := newParser(ctx, c, &terminal.Streams{Out: io.Discard, Err: &log}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(base, "s")
	command, err := p.Parse([]string{
		"serve", "--dir", filepath.Join(base, "d"), "--socket", socket, "--http", "off", "--max-bytes", "64MiB", "--host-bytes", "64MiB",
		"--record-trace", file, "--record-trace-block-tokens", fmt.Sprint(blockTokens),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- command.Run() }()
	wait.For(t, "the daemon", func() bool { return strings.Contains(log.String(), "msg=ready") })

	var in, out bytes.Buffer
	for n := range prompts {
		tokens := make([]uint32, promptTokens)
		for i := range tokens {
			tokens[i] = uint32(i % 50)
			if i >= common {
				tokens[i] = uint32(n)
			}
		}
		if err := json.NewEncoder(&in).Encode(map[string]any{"id": fmt.Sprint("r", n), "tokens": tokens, "max_tokens": 4 + n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := demo.ServeEngine(ctx, demo.EngineOptions{Socket: socket, Logger: slog.New(slog.DiscardHandler)}, &in, &out); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	status, stdout, errs := kvconnd("replay", file, "--block-tokens", fmt.Sprint(blockTokens), "--ranks", "1", "--policies", "cost", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var got struct {
		Trace struct {
			Requests       int `json:"requests"`
			Blocks         int `json:"blocks"`
			DistinctBlocks int `json:"distinct_blocks"`
			InputTokens    int `json:"input_tokens"`
			OutputTokens   int `json:"output_tokens"`
		} `json:"trace"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	r := got.Trace
	if r.Requests != prompts || r.Blocks != prompts*(promptTokens/blockTokens) || r.DistinctBlocks != common/blockTokens || r.InputTokens != prompts*promptTokens {
		t.Errorf("%+v\n%s", r, stdout[:min(len(stdout), 1000)])
	}
	// The last token of an answer is never computed, so that the cache does not hear of it.
	if want := 3 + 4 + 5; r.OutputTokens < want-prompts || r.OutputTokens > want+prompts {
		t.Errorf("%d tokens of answers, about %d wanted", r.OutputTokens, want)
	}
}
