package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
)

// faultVariable makes the test binary kvconnd, for the processes that a demo starts, with a fault of
// one of them.
const faultVariable = "KVCONN_TEST_DEMO_FAULT"

// The faults.
const (
	noFault        = "none"
	daemonEnds     = "the daemon ends"
	daemonSaysNone = "the daemon does not say how to reach it"
	engineEnds     = "the engine ends"
	engineBabbles  = "the engine's answers make no sense"
	engineRefuses  = "the engine refuses"
	engineDies     = "the engine dies of a prompt"
	engineIsWrong  = "the engine's second answer differs"
)

func TestMain(m *testing.M) {
	fault := os.Getenv(faultVariable)
	if fault == "" {
		os.Exit(m.Run())
	}
	if err := beKvconnd(fault, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// beKvconnd is the part of kvconnd that demos run, with a small model.
func beKvconnd(fault, command string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	socket, dir := flags.String("socket", "", ""), flags.String("dir", "", "")
	for _, name := range []string{"http", "max-bytes", "min-free"} {
		flags.String(name, "", "")
	}
	caching := flags.Bool("prefix-caching", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if command != "serve" {
		return serveFaulty(ctx, fault, EngineOptions{Socket: *socket, PrefixCaching: *caching, Logger: slog.New(slog.DiscardHandler)})
	}
	switch fault {
	case daemonEnds:
		return fmt.Errorf("%s%s", strings.Repeat("older words ", tailBytes), fault)
	case daemonSaysNone:
		if err := os.WriteFile(*socket, nil, 0o600); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	return daemon.Run(ctx, daemon.Options{
		Dir: *dir, Socket: *socket, HTTP: "127.0.0.1:0", MaxBytes: 64 << 20, HostBytes: 64 << 20, NoMinFree: true, Store: new(storetest.Disk).Under,
	})
}

// serveFaulty is the engine's process.
func serveFaulty(ctx context.Context, fault string, o EngineOptions) error {
	enc, in := json.NewEncoder(os.Stdout), io.Reader(os.Stdin)
	switch fault {
	case engineEnds:
		return fmt.Errorf("%s", fault)
	case engineBabbles:
		return enc.Encode(fault)
	case engineRefuses:
		in = strings.NewReader("no prompt\n")
	case engineDies:
		_ = enc.Encode(completion{Ready: true})
		_, _ = os.Stdin.Read(make([]byte, 1))
		return fmt.Errorf("%s", fault)
	}
	out := io.Writer(os.Stdout)
	if fault == engineIsWrong && o.PrefixCaching {
		out = writerFunc(func(b []byte) (int, error) {
			return os.Stdout.Write(bytes.Replace(b, []byte(`"tokens":[`), []byte(`"tokens":[0,`), 1))
		})
	}
	m := model.Config{Name: "minute", Vocab: 256, Dim: 16, Hidden: 16, Layers: 4, Heads: 1, KVHeads: 1, HeadDim: 8, MaxContext: 2048, Seed: seed}
	err := serveEngine(ctx, o, m, in, out)
	if fault == engineRefuses {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// runDemo runs a demo whose processes are this program.
func runDemo(t *testing.T, fault string) (*Report, string, error) {
	t.Helper()
	t.Setenv(faultVariable, fault)
	var progress bytes.Buffer
	r, err := Run(t.Context(), Options{Executable: os.Args[0], Keep: filepath.Join(t.TempDir(), "store"), Progress: &progress})
	return r, progress.String(), err
}

func TestAnswersAreTheSameFromTheCacheAndTheFlippedBitIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("models are slow under the race detector; the failures start the same processes")
	}
	r, progress, err := runDemo(t, noFault)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var told Report
	if err := json.Unmarshal(b, &told); err != nil || !told.OK() || len(told.Rows) != 7 {
		t.Errorf("%v: %s", err, b)
	}
	for i, row := range told.Rows {
		whole := (row.PromptTokens - 1) / blockSize * blockSize
		if row.CachedTokens != whole || row.DiskTokens+row.GPUTokens != whole || row.DiskTokens == 0 || (row.GPUTokens > 0) != (i > 0) ||
			row.TTFTColdS <= 0 || row.TTFTCachedS <= 0 {
			t.Errorf("%+v: want %d tokens from the cache, some from disk, all of the first row's", row, whole)
		}
	}
	if c := told.Corruption; c.RecomputedTokens == 0 || c.RecomputedTokens >= told.Rows[0].PromptTokens-corruptBlock*blockSize+blockSize {
		t.Errorf("%+v: want tokens from the flipped block on recomputed", c)
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil || strings.Contains(text.String(), "NO") || !strings.Contains(text.String(), r.Store) {
		t.Errorf("%v: %s", err, &text)
	}
	for _, want := range []string{"1/3", "2/3", "3/3", "crane, turn 2"} {
		if !strings.Contains(progress, want) {
			t.Errorf("%q is not in %q", want, progress)
		}
	}
	if _, err := Run(t.Context(), Options{Executable: os.Args[0], Keep: r.Store, Progress: io.Discard}); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a second demo on the store: %v", err)
	}
}

func TestFailuresSayWhoFailedAndWhatItLogged(t *testing.T) {
	for fault, want := range map[string]string{
		daemonEnds:     "the daemon failed: ended before it was ready\nexit status 1\n",
		daemonSaysNone: "no daemon serves",
		engineEnds:     "the engine failed: not ready\nunexpected EOF\n" + engineEnds,
		engineBabbles:  "answer of the engine: json",
		engineRefuses:  "the engine cannot serve dock, turn 1: invalid character",
		engineDies:     "the engine failed: ",
	} {
		t.Run(fault, func(t *testing.T) {
			_, _, err := runDemo(t, fault)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v, want %q", err, want)
			}
			if fault == daemonEnds && (!strings.HasSuffix(err.Error(), fault) || len(err.Error()) > tailBytes+1000) {
				t.Errorf("%d bytes of the log, want its end", len(err.Error()))
			}
			if fault == engineDies && !strings.Contains(err.Error(), fault) {
				t.Errorf("%v, want what it logged", err)
			}
		})
	}
	if err := flipBit(t.TempDir(), connector.Key{}); err == nil || !strings.Contains(err.Error(), "flip a bit in the store: no record with key") {
		t.Errorf("a store without the record: %v", err)
	}
	if _, err := Run(t.Context(), Options{Executable: "/nowhere/kvconnd", Progress: io.Discard}); err == nil || !strings.Contains(err.Error(), "start the daemon: ") {
		t.Errorf("without a program: %v", err)
	}
}

func TestAnAnswerThatDiffersIsNotOK(t *testing.T) {
	if testing.Short() {
		t.Skip("models are slow under the race detector; the failures start the same processes")
	}
	r, _, err := runDemo(t, engineIsWrong)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil || r.OK() || r.Rows[0].Identical || !strings.Contains(text.String(), "NO") {
		t.Errorf("%v: %s", err, &text)
	}
}

func TestInterruptedDemoSaysSoAlone(t *testing.T) {
	t.Setenv(faultVariable, noFault)
	ctx, cancel := context.WithCancel(t.Context())
	progress := writerFunc(func(b []byte) (int, error) {
		if strings.Contains(string(b), "turn 1") {
			cancel()
		}
		return len(b), nil
	})
	if _, err := Run(ctx, Options{Executable: os.Args[0], Progress: progress}); err == nil || err.Error() != "interrupted" {
		t.Errorf("%v", err)
	}
}
