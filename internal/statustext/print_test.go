package statustext

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/worker"
)

// golden compares output with testdata/name; KVCONN_TEST_UPDATE=1 writes it again.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("KVCONN_TEST_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output differs from %s:\n%s", path, got)
	}
}

// exampleStatus is a daemon at work. uptimeS moves its counters on.
func exampleStatus(uptimeS float64) *daemon.Status {
	n := uint64(uptimeS)
	s := &daemon.Status{
		Version: "kvconnd/1.2.3", Epoch: "00000000000000ff", PID: 42, UptimeS: uptimeS, Socket: "/run/kvconn/kvconnd.sock",
		Health: health.State{OK: true},
		Engines: []daemon.EngineStatus{{
			Engine: "chat-0", PID: 100, Model: "org/model", RanksNeeded: 2,
			Requests: leader.Stats{Requests: 3, QueriedTokens: 1000 * n, OfferedTokens: 750 * n, FailedLoads: 1, DecisionsFull: 20, DecisionsTrimmed: 4, DecisionsRefused: 1, PrefillTokensPerS: 8000, TierRefused: true},
		}, {Engine: "evil\x1b[2J\tname", PID: 101, Model: "m", RanksNeeded: 1}},
		Ranks: []daemon.RankStatus{
			{Engine: "chat-0", PID: 102, Rank: 0, Registered: true, BlockBytes: []int{2 << 20, 1 << 19}, Transfers: worker.Stats{LoadedBytes: n << 30, SavedBytes: n << 20, LoadsInFlight: 1}},
			{Engine: "chat-0", PID: 103, Rank: 1},
		},
		Tiers: []daemon.TierStatus{
			{Tier: "disk", Records: 1234, UsedBytes: 3 << 30, MaxBytes: 5 << 30, ReachableBytes: 4 << 30, Hits: 99, LoadBytesPerS: 3 << 30},
			{Tier: "host", MaxBytes: 64 << 20, ReachableBytes: 64 << 20},
		},
		GPUs: []gpu.DeviceStatus{
			{UUID: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", Name: "NVIDIA H200", Driver: "13.0", Running: true, Starts: 1, LoadedBytes: n << 30,
				Copies: []gpu.CopyStatus{
					{Direction: "save", RunBytes: 2048, Runs: 512, By: "kernel", BatchBytesPerS: 4 << 30, KernelBytesPerS: 20 << 30},
					{Direction: "load", RunBytes: 2048, Runs: 16, By: "batch", BatchBytesPerS: 4 << 30, KernelBytesPerS: 2 << 30},
				}},
			{UUID: "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f", Name: "NVIDIA H200", Driver: "13.0", Starts: 3, LastError: "the copier does not answer", KernelError: "load the device code: refused"},
			{UUID: "GPU-20010203-0405-0607-0809-0a0b0c0d0e0f", Name: "NVIDIA H200", Driver: "13.0", Running: true, Starts: 1, PinnedBytes: 8 << 30, PinError: "OUT_OF_MEMORY (2)"},
		},
		Queues:  daemon.Queues{LoadsInFlight: 1, QueuedReads: 9, ReadInFlightBytes: 8 << 20, ReadBudgetBytes: 16 << 20, ReadQueuedBytes: 12 << 20, WriteInFlightBytes: 5 << 20, Leases: 2},
		Opening: &opening.Status{Stage: "rebuilding the index", Done: 250, Total: 1000, ForS: 3},
		Store: disk.Stats{Usage: disk.Usage{MaxBytes: 5 << 30, EffectiveMaxBytes: 4 << 30, LimitedBy: "free", MinFreeBytes: 10 << 30, FreeBytes: 11 << 30, FileSystemBytes: 100 << 30, Segments: 12},
			Dir: "/var/lib/kvconn", Namespaces: 2, LookupBlocks: 200, HitBlocks: 150, ReadBytes: n << 30, Evicted: 5, ReadSpeed: store.Speed{BytesPerS: 3 << 30, LatencyS: 0.00042}},
	}
	s.Totals.Requests = leader.Stats{QueriedTokens: 1000 * n, OfferedTokens: 750 * n, LoadTokens: 700 * n, DecisionsFull: 20, DecisionsTrimmed: 4, DecisionsRefused: 1}
	s.Totals.Transfers = worker.Stats{LoadedBytes: n << 30, LoadedBlocks: 512 * n, SavedBytes: n << 20, SavedBlocks: n, DroppedBlocks: 2 * n}
	return s
}

func TestStatusOutput(t *testing.T) {
	var out bytes.Buffer
	if err := Print(&out, exampleStatus(60), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.golden", out.String())
	out.Reset()
	s := exampleStatus(60)
	s.Health = health.State{Reasons: []health.Reason{{Code: "writes_failing", Detail: "the disk refuses writes", Remedy: "is it full?", SinceS: 61}}}
	s.Store.Warnings = []string{"segment 3 is gone with its records"}
	s.Engines[1].NotReady = "the memory of a rank\x1b is gone"
	if err := Print(&out, s, Since(exampleStatus(58), s)); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-watch.golden", out.String())
}

func TestRatesAreOfTheIntervalOfOneDaemon(t *testing.T) {
	r := Since(exampleStatus(58), exampleStatus(60))
	if r == nil || r.LoadBytesPerS != 1<<30 || r.QueriedTokensPerS != 1000 || r.Hit != 0.75 || r.DroppedBlocksPerS != 2 {
		t.Errorf("rates %+v", r)
	}
	other := exampleStatus(60)
	other.Epoch = "another"
	if Since(nil, other) != nil || Since(exampleStatus(58), other) != nil || Since(other, other) != nil {
		t.Error("rates of looks that cannot be compared")
	}
	idle := exampleStatus(60)
	idle.UptimeS++
	if r := Since(exampleStatus(60), idle); r.Hit != -1 || r.LoadBytesPerS != 0 {
		t.Errorf("idle: %+v", r)
	}
}

// A terminal has 80 columns, and vLLM's ids are UUIDs. In a container engines may have no process number.
func TestAStatusFitsATerminal(t *testing.T) {
	before, s := exampleStatus(58), exampleStatus(60)
	s.GPUs[1].Name, s.GPUs[1].LastError = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "the copier does not answer, and its process "+
		"had to be killed: it may be that the driver has hung (exit status 137)"
	s.GPUs[1].UUID, s.GPUs[2].UUID = "MIG-10010203-0405-0607-0809-0a0b0c0d0e0f", "odd"
	s.GPUs[0].LoadedBytes, s.GPUs[0].SavedBytes = 1000<<40, 1000<<40
	const uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
	s.Engines[0].Engine, s.Engines[0].PID, s.Engines[0].Model = uuid+"_dp0", 0, "Qwen/Qwen3-0.6B"
	for i := range s.Ranks {
		s.Ranks[i].Engine, s.Ranks[i].PID = uuid+"_dp0", 0
	}
	var out strings.Builder
	if err := Print(&out, s, Since(before, s)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if text := out.String(); !strings.Contains(text, "\n0f8fad5b_dp0   -  ") || strings.Contains(text, uuid) {
		t.Errorf("%s", text)
	}
	for name, want := range map[string]string{"chat-0": "chat-0", uuid: "0f8fad5b", "0f8fad5b-d9cb-469f-a165-70867728950x": "0f8fad5b-d9cb-469f-a165-70867728950x", "": "", uuid[:35]: uuid[:35]} {
		if got := Short(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}
