package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/router/replay"
)

const smallTrace = "../../router/replay/testdata/small.jsonl"

func TestReplayPrintsReportJSONAndPlot(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "out.svg")
	status, out, errs := kvconnd("replay", smallTrace, "--ranks", "2", "--policies", "round-robin,cost", "--plot", plot)
	if status != 0 || errs != "" {
		t.Fatalf("status %d, %q", status, errs)
	}
	for _, want := range []string{"Trace: 6 requests", "round-robin", "cost", "of the possible hits need"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if drawing, err := os.ReadFile(plot); err != nil || !bytes.HasPrefix(drawing, []byte("<svg ")) {
		t.Errorf("the plot begins with %.20q, %v", drawing, err)
	}
	status, out, _ = kvconnd("replay", smallTrace, "--ranks", "2", "--disk-blocks", "0", "--disk-bytes-per-s", "7GB", "--json")
	var r replay.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	if r.Trace.Requests != 6 || r.Setup.Ranks != 2 || r.Setup.DiskBlocks != 0 || r.Setup.DiskBytesPerS != 7e9 || len(r.Policies) != 7 {
		t.Errorf("%+v, %+v, %d policies", r.Trace, r.Setup, len(r.Policies))
	}
}

func TestReplayGeneratesAgents(t *testing.T) {
	status, out, errs := kvconnd("replay", "agents:load=0.5,requests=40,agents=4", "--policies", "cost", "--nodes", "2")
	if status != 0 || !strings.Contains(out, "Trace: 40 requests") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	if status, _, errs = kvconnd("replay", "agents:speed=3"); status == 0 || !strings.Contains(errs, "speed=3") {
		t.Errorf("status %d, %s", status, errs)
	}
}

// The defaults of the flags are those of the package.
func TestReplayDefaults(t *testing.T) {
	status, out, _ := kvconnd("replay", smallTrace, "--json")
	var got replay.Report
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	f, err := os.Open(smallTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := replay.Read(f, replay.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := replay.Run(t.Context(), trace, replay.Options{}, strings.Split("round-robin,load,kv-aware,kv-aware-gpu,conversation,first-turn,cost", ","), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Setup != want.Setup || len(got.Policies) != len(want.Policies) {
		t.Errorf("setup %+v with %d policies, want %+v with %d", got.Setup, len(got.Policies), want.Setup, len(want.Policies))
	}
}

// Every flag reaches the simulation.
func TestReplayFlagsAreTheSetup(t *testing.T) {
	status, out, errs := kvconnd("replay", smallTrace, "--json", "--policies", "load", "--ranks", "4", "--nodes", "2", "--gpu-blocks", "11", "--disk-blocks", "12",
		"--object-blocks", "13", "--prefill-tokens-per-s", "14", "--bytes-per-token", "15", "--disk-bytes-per-s", "16", "--object-bytes-per-s", "17",
		"--save-bytes-per-s", "18MB", "--disk-delay", "19s", "--object-delay", "20s", "--decode-token-time", "21s", "--max-running", "22", "--overlap-loads",
		"--always-load", "--speed", "23", "--spread", "24s", "--sequential", "--full-blocks-only", "--seed", "25")
	var r replay.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 {
		t.Fatalf("status %d, %v, %s", status, err, errs)
	}
	want := replay.Options{
		Ranks: 4, Nodes: 2, GPUBlocks: 11, DiskBlocks: 12, ObjectBlocks: 13, PrefillTokensPerS: 14, BytesPerToken: 15, DiskBytesPerS: 16, ObjectBytesPerS: 17,
		SaveBytesPerS: 18e6, DiskDelay: 19, ObjectDelay: 20, DecodeTokenTime: 21, MaxRunning: 22, OverlapLoads: true, AlwaysLoad: true,
		PredictTTL: 5, Speed: 23, Spread: 24, Sequential: true, FullBlocksOnly: true, Seed: 25,
	}
	if r.Setup != want {
		t.Errorf("%+v\nwant %+v", r.Setup, want)
	}
}

func TestReplayReadsStandardInput(t *testing.T) {
	var out, errs bytes.Buffer
	in := `{"timestamp": 1, "input_length": 20, "output_length": 1, "hash_ids": [3, 4]}`
	status := run([]string{"replay", "-", "--block-tokens", "16"}, &terminal.Streams{In: strings.NewReader(in), Out: &out, Err: &errs})
	if status != 0 || !strings.Contains(out.String(), "Trace: 1 request ") {
		t.Errorf("status %d, %q, %q", status, &out, &errs)
	}
}

func TestReplayErrorsSayWhatToDo(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file":                 {"replay", "/nowhere.jsonl"},
		"line 1: no timestamp":         {"replay", bad},
		"want one of cost, kv-aware":   {"replay", smallTrace, "--policies", "fastest"},
		"cannot be spread evenly":      {"replay", smallTrace, "--nodes", "3"},
		"--ranks is 0: must be":        {"replay", smallTrace, "--ranks", "0"},
		"--speed is 0: must be":        {"replay", smallTrace, "--speed", "0"},
		"is no size":                   {"replay", smallTrace, "--disk-bytes-per-s", "fast"},
		"not blocks of 16 tokens":      {"replay", smallTrace, "--block-tokens", "16"},
		"--block-tokens is 0: must be": {"replay", smallTrace, "--block-tokens", "0"},
		"ends in .svg":                 {"replay", smallTrace, "--plot", "out.png"},
		"create plot":                  {"replay", smallTrace, "--plot", "/nowhere/out.svg"},
		`did you mean "--gpu-blocks"`:  {"replay", smallTrace, "--gpu-block", "5"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}

// Traces are long, and people keep them packed. They know the sizes of disks, not numbers of blocks.
func TestReplayTakesPackedTracesAndSizes(t *testing.T) {
	plain, err := os.ReadFile(smallTrace)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(plain); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl.gz")
	if err := os.WriteFile(file, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const block = 512 * 128 << 10
	status, out, errs := kvconnd("replay", file, "--disk-blocks", "1GiB", "--gpu-blocks", "640MiB", "--json")
	var r replay.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 {
		t.Fatalf("status %d, %v %s", status, err, errs)
	}
	if r.Trace.Requests != 6 || r.Setup.DiskBlocks != 1<<30/block || r.Setup.GPUBlocks != 640<<20/block {
		t.Errorf("%+v, %+v", r.Trace, r.Setup)
	}
	if err := os.WriteFile(file, packed.Bytes()[:packed.Len()/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := kvconnd("replay", file); status == 0 || !strings.Contains(errs, "unexpected end") {
		t.Errorf("half of it: status %d, %s", status, errs)
	}
}

// The size of a token's KV comes from a model's name or file, or from its own flag.
func TestReplayKnowsModels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(`{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want float64
	}{
		{nil, 128 << 10}, {[]string{"--model", "meta-llama/Llama-3.1-70B-Instruct"}, 320 << 10},
		{[]string{"--model", "llama-3.1-70b", "--kv-type", "fp8"}, 160 << 10}, {[]string{"--model", file}, 512},
	} {
		status, out, errs := kvconnd(append([]string{"replay", smallTrace, "--json", "--policies", "load"}, c.args...)...)
		var r replay.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 || r.Setup.BytesPerToken != c.want {
			t.Errorf("%v: %v bytes a token, want %v; %v, %s", c.args, r.Setup.BytesPerToken, c.want, err, errs)
		}
		if strings.Contains(errs, "bytes of KV a token") != (c.args != nil) {
			t.Errorf("%v: %q", c.args, errs)
		}
	}
	for want, args := range map[string][]string{
		`did you mean "qwen3-32b"`: {"--model", "qwen3-33b"}, "give one of them": {"--model", "qwen3-32b", "--bytes-per-token", "1KiB"},
		"needs --model": {"--kv-type", "fp8"}, "int3": {"--model", "qwen3-32b", "--kv-type", "int3"}, "no such file": {"--model", file + "x.json"},
	} {
		if status, _, errs := kvconnd(append([]string{"replay", smallTrace}, args...)...); status == 0 || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q; want %q", args, status, errs, want)
		}
	}
}
