package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// rankVariable makes the test binary a rank's process.
const rankVariable = "KVCONN_ENGINE_TEST_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(rankVariable) == "" {
		os.Exit(m.Run())
	}
	connect := func(_ context.Context, o client.Options, rank int, layout connector.Layout, regions []*os.File) (WorkerConnector, error) {
		if o.Name == "refused" {
			return nil, errors.New("refused")
		}
		return &fakeWorker{store: dirStore(o.Socket), manifest: o.Manifest, rank: rank, layout: layout, file: regions[0]}, nil
	}
	if err := RunRank(context.Background(), os.Stdin, connect); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// processes makes every rank a process.
func processes(t *testing.T) func(*Options) {
	t.Setenv(rankVariable, "1")
	return func(o *Options) { o.RankCommand = []string{os.Args[0]} }
}

// connectProcesses attaches a fake scheduler, and fake workers in the processes.
func connectProcesses(t *testing.T, e *Engine, store dirStore) *fakeConnector {
	t.Helper()
	o := client.Options{Socket: string(store), Engine: "e", Manifest: e.Manifest()}
	for _, r := range e.ranks.all {
		if err := r.(*processRank).connect(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return newFake(t, e, store)
}

func TestRanksInProcessesSaveAndLoadTheirOwnShards(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	ranks := processes(t)
	for name, change := range map[string]func(*Options){
		"tensor parallel":   func(o *Options) { o.TensorParallel = 2 },
		"pipeline parallel": func(o *Options) { o.Model = model.TinyHybrid(7); o.PipelineParallel = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			store := dirStore(t.TempDir())
			want := alone(t, q, change)
			for _, cached := range []int{0, 144} {
				e := newEngine(t, change, ranks)
				connectProcesses(t, e, store)
				r := run(t, e, q)[0]
				check(t, r, want)
				if r.CachedTokens != cached || len(e.RankPIDs()) != 2 {
					t.Errorf("%d tokens loaded by %d processes, want %d", r.CachedTokens, len(e.RankPIDs()), cached)
				}
			}
		})
	}
}

func TestShardThatOneProcessCannotLoadIsRecomputedByAll(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	two := func(o *Options) { o.TensorParallel = 2 }
	ranks := processes(t)
	store := dirStore(t.TempDir())
	e := newEngine(t, two, ranks)
	connectProcesses(t, e, store)
	run(t, e, q)
	bad := storeName(e.chainOf(q)[4], 1)
	wrong := store.get(storeName(e.chainOf(q)[3], 1))
	want := alone(t, q, two)
	for name, x := range map[string]struct {
		do   func() error
		same bool
	}{
		"missing": {func() error { return os.Remove(string(store) + "/" + bad) }, true},
		"wrong":   {func() error { store.put(bad, wrong); return nil }, false},
	} {
		kept := store.get(bad)
		if err := x.do(); err != nil {
			t.Fatal(err)
		}
		e := newEngine(t, two, ranks)
		f := connectProcesses(t, e, store)
		f.blind = true
		q := q
		q.NoSave = true
		r := run(t, e, q)[0]
		if slices.Equal(r.Tokens, want) != x.same {
			t.Errorf("shard is %s: the tokens are right: %t", name, !x.same)
		}
		if recomputed := map[bool]int{true: 80}[x.same]; r.RecomputedTokens != recomputed {
			t.Errorf("shard is %s: %d tokens recomputed, want %d", name, r.RecomputedTokens, recomputed)
		}
		store.put(bad, kept)
	}
}

func TestRankThatIsDeadOrSilentEndsTheEngineWithAClearError(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP} {
		e := newEngine(t, func(o *Options) { o.TensorParallel = 2 }, processes(t))
		connectProcesses(t, e, dirStore(t.TempDir()))
		if err := e.Submit(Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: 5}); err != nil {
			t.Fatal(err)
		}
		step(t, e)
		if err := syscall.Kill(e.RankPIDs()[1], signal); err != nil {
			t.Fatal(err)
		}
		if signal == syscall.SIGSTOP {
			e.ranks.all[1].(*processRank).timeout = 100 * time.Millisecond
		}
		_, err := e.Run(t.Context(), nil)
		if !errors.Is(err, ErrRank) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%v: error %v", signal, err)
		}
	}
}

func TestRankThatCannotStartOrConnectIsAnError(t *testing.T) {
	o := Options{Model: model.Tiny(7), Blocks: 20, RankCommand: []string{"/bin/true"}}
	if _, err := New(o); err == nil {
		t.Error("a program that is no rank was accepted")
	}
	o.RankCommand[0] = "/nonexistent"
	if _, err := New(o); err == nil {
		t.Error("a program that is not there was accepted")
	}
	e := newEngine(t, processes(t))
	err := e.Connect(t.Context(), client.Options{Socket: t.TempDir() + "/none", Engine: "e", Name: "refused"})
	if err == nil || !strings.Contains(err.Error(), "rank 0: connect: refused") {
		t.Errorf("error %v", err)
	}
}
