package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if err := printStatus(&out, exampleStatus(60), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.golden", out.String())
	out.Reset()
	s := exampleStatus(60)
	s.Health = health.State{Reasons: []health.Reason{{Code: "writes_failing", Detail: "the disk refuses writes", Remedy: "is it full?", SinceS: 61}}}
	s.Store.Warnings = []string{"segment 3 is gone with its records"}
	s.Engines[1].NotReady = "the memory of a rank\x1b is gone"
	if err := printStatus(&out, s, ratesSince(exampleStatus(58), s)); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-watch.golden", out.String())
}

func TestRatesAreOfTheIntervalOfOneDaemon(t *testing.T) {
	r := ratesSince(exampleStatus(58), exampleStatus(60))
	if r == nil || r.loadBytesPerS != 1<<30 || r.queriedTokensPerS != 1000 || r.hit != 0.75 || r.droppedBlocksPerS != 2 {
		t.Errorf("rates %+v", r)
	}
	other := exampleStatus(60)
	other.Epoch = "another"
	if ratesSince(nil, other) != nil || ratesSince(exampleStatus(58), other) != nil || ratesSince(other, other) != nil {
		t.Error("rates of looks that cannot be compared")
	}
	idle := exampleStatus(60)
	idle.UptimeS++
	if r := ratesSince(exampleStatus(60), idle); r.hit != -1 || r.loadBytesPerS != 0 {
		t.Errorf("idle: %+v", r)
	}
}

// serveStatus answers with the given looks, then ends the watch.
func serveStatus(t *testing.T, end context.CancelFunc, looks ...*daemon.Status) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if len(looks) == 1 {
			defer end()
		}
		if len(looks) == 0 {
			return
		}
		if looks[0] == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if err := json.NewEncoder(w).Encode(looks[0]); err != nil {
			t.Error(err)
		}
		looks = looks[1:]
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestWatchPrintsABlockPerIntervalAndOutlivesTheDaemon(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		addr := serveStatus(t, cancel, exampleStatus(10), nil, exampleStatus(12), exampleStatus(14), exampleStatus(16))
		c := statusCmd{HTTP: addr, Watch: true, Interval: minWatchInterval, JSON: asJSON}
		var out bytes.Buffer
		if err := c.Run(ctx, &streams{out: &out}); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if asJSON {
			lines := strings.Split(strings.TrimSpace(text), "\n")
			var s daemon.Status
			if err := json.Unmarshal([]byte(lines[0]), &s); err != nil || s.PID != 42 || !strings.Contains(lines[1], `"error"`) {
				t.Errorf("%v\n%s", err, text)
			}
			continue
		}
		// The look after the missing one has none to compare with.
		if strings.Count(text, "epoch") < 3 || strings.Count(text, "\nnow ") < 1 || !strings.Contains(text, "503") || strings.Contains(text, "\x1b") {
			t.Errorf("watch printed\n%s", text)
		}
	}
}

// A daemon that was killed leaves its address behind, which another may have taken.
func TestStatusOfADirectoryIsOfItsOwnDaemon(t *testing.T) {
	dir := t.TempDir()
	s := exampleStatus(1)
	for _, epoch := range []string{s.Epoch, "another"} {
		info := fmt.Sprintf(`{"pid":7,"epoch":%q,"http":%q}`, epoch, serveStatus(t, func() {}, s))
		if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
		own := epoch == s.Epoch
		if status, _, errs := kvconnd("status", "--dir", dir); (status == 0) != own || own == strings.Contains(errs, "was killed") {
			t.Errorf("epoch %s: status %d, %q", epoch, status, errs)
		}
	}
}

func TestWatchShowsTheTopOfWhatATerminalHasNoRoomFor(t *testing.T) {
	for _, tc := range []struct {
		text          string
		width, height int
		want          string
	}{
		{"a\nb\n\n", 80, 2, "a\nb\n"},
		{"a\nb\nc\n", 80, 2, "a\n(2 more lines)\n"},
		{"a\nb\nc\n", 80, 3, "a\nb\nc\n"},
		{"a\nbbbbbb\nc\n", 3, 3, "a\n(2 more lines)\n"},
		{"a\nbbbbbb\nc\n", 3, 4, "a\nbbbbbb\nc\n"},
		{"a\néééééé\n", 6, 2, "a\néééééé\n"},
	} {
		if got := crop(tc.text, tc.width, tc.height); got != tc.want {
			t.Errorf("%q on %d by %d: %q, want %q", tc.text, tc.width, tc.height, got, tc.want)
		}
	}
}

func TestStatusOfAnUnhealthyDaemonIsAnError(t *testing.T) {
	s := exampleStatus(1)
	s.Health = health.State{Reasons: []health.Reason{{Code: "no_room", Detail: "saves find no room"}}}
	status, out, errs := kvconnd("status", "--http", serveStatus(t, func() {}, s))
	if status == 0 || !strings.Contains(out, "saves find no room") || !strings.Contains(errs, "unhealthy") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}
