package statustext

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

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
			{UUID: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", Name: "NVIDIA H200", Driver: "13.0", Running: true, Starts: 1, LoadedBytes: n << 30},
			{UUID: "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f", Name: "NVIDIA H200", Driver: "13.0", Starts: 3, LastError: "the copier does not answer"},
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
	if r == nil || r.loadBytesPerS != 1<<30 || r.queriedTokensPerS != 1000 || r.hit != 0.75 || r.droppedBlocksPerS != 2 {
		t.Errorf("rates %+v", r)
	}
	other := exampleStatus(60)
	other.Epoch = "another"
	if Since(nil, other) != nil || Since(exampleStatus(58), other) != nil || Since(other, other) != nil {
		t.Error("rates of looks that cannot be compared")
	}
	idle := exampleStatus(60)
	idle.UptimeS++
	if r := Since(exampleStatus(60), idle); r.hit != -1 || r.loadBytesPerS != 0 {
		t.Errorf("idle: %+v", r)
	}
}
