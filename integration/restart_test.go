package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestCacheSurvivesRestartOfEngineAndDaemon(t *testing.T) {
	t.Parallel()
	for _, prefixCaching := range []bool{false, true} {
		for _, chunk := range []int{32, 512} {
			t.Run(fmt.Sprintf("prefixCaching=%v,chunk=%d", prefixCaching, chunk), func(t *testing.T) {
				change := func(o *engine.Options) { o.PrefixCaching, o.MaxBatchedTokens = prefixCaching, chunk }
				ps := prompts(1, 6)
				want := reference(t, change, ps)
				n := newNode(t)
				n.start()
				first := newInstance(t, n, change)
				same(t, "first run", first.run("first", ps), want)
				first.close()
				n.stop()
				n.start()
				second := newInstance(t, n, change)
				got := second.run("second", ps)
				same(t, "second run", got, want)
				for k, r := range got {
					if all := (len(ps[k]) - 1) / 8 * 8; r.CachedTokens+r.LocalCachedTokens < all {
						t.Errorf("prompt %d: %d tokens from disk and %d from the engine's own cache, want %d together",
							k, r.CachedTokens, r.LocalCachedTokens, all)
					}
				}
				if cached(got) == 0 {
					t.Error("nothing came from disk")
				}
			})
		}
	}
}

func TestCacheSurvivesKillNine(t *testing.T) {
	t.Parallel()
	ps := prompts(2, 5)
	want := reference(t, nil, ps)
	n := newNode(t)
	n.start()
	e := newInstance(t, n, nil)
	same(t, "first run", e.run("first", ps), want)
	n.waitDurable(e)
	n.kill()
	n.start()
	// The engine was not restarted: it finds the new daemon by itself.
	got := e.run("second", ps)
	same(t, "second run", got, want)
	for k, r := range got {
		if all := (len(ps[k]) - 1) / 8 * 8; r.CachedTokens != all {
			t.Errorf("prompt %d: %d tokens from disk, want %d: what passed a barrier must be there", k, r.CachedTokens, all)
		}
	}
}

func TestEngineGoesOnWhileTheDaemonDiesAndComesBack(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	e, random := newInstance(t, n, nil), seed.Random(t, 0)
	for round := range rounds(5, 12) {
		ps := prompts(3+round%3, 5)
		want := reference(t, nil, ps)
		killed := make(chan struct{})
		// At a random moment of the run: before the match, in a load, in a save.
		time.AfterFunc(time.Duration(random.IntN(20_000))*time.Microsecond, func() { _ = n.cmd.Process.Kill(); close(killed) })
		same(t, fmt.Sprintf("round %d", round), e.run(fmt.Sprint("round", round), ps), want)
		<-killed
		_ = n.cmd.Wait()
		same(t, "without a daemon", e.run(fmt.Sprint("alone", round), ps), want)
		n.start()
		same(t, "with a new daemon", e.run(fmt.Sprint("again", round), ps), want)
	}
	ps := prompts(3, 5)
	e.run("warm", ps)
	n.saved()
	if got := e.run("cached", ps); cached(got) == 0 {
		t.Error("the cache does not work again after the daemon came back")
	}
}

func TestEngineDyingMidwayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(6, 5)
	want := reference(t, nil, ps)
	for round := range 8 {
		e := newInstance(t, n, nil)
		for k, p := range ps {
			if err := e.Submit(engine.Request{ID: fmt.Sprint(round, k), Prompt: p, MaxTokens: 8}); err != nil {
				t.Fatal(err)
			}
		}
		for range 1 + round {
			if _, _, err := e.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		e.close()
	}
	n.waitLetGo()
	e := newInstance(t, n, nil)
	same(t, "a new engine", e.run("new", ps), want)
}

// A process that is killed takes its memory and leases with it.
func TestKilledEngineProcessIsNoticed(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	path, err := daemonBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "demo-engine", "--socket", n.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.wait("the engine to register", func() bool { s := n.status(); return len(s.Ranks) == 1 && s.Ranks[0].Registered })
	if _, err := fmt.Fprintf(in, "{\"id\":\"r\",\"max_tokens\":100,\"tokens\":[1,2,3%s]}\n", strings.Repeat(",7", 600)); err != nil {
		t.Fatal(err)
	}
	n.wait("the engine to work", func() bool { return len(n.status().Engines) == 1 && n.status().Engines[0].Requests.Requests == 1 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	n.waitLetGo()
}

func TestTwoEnginesShareOneCache(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(7, 6)
	want := reference(t, nil, ps)
	a, b := newInstance(t, n, nil), newInstance(t, n, nil)
	done := make(chan []engine.Result)
	go func() { r, _ := b.Run(t.Context(), requestsOf("b", ps)); done <- r }()
	same(t, "engine a", a.run("a", ps), want)
	same(t, "engine b", <-done, want)
	n.saved()
	got := a.run("a again", ps)
	same(t, "engine a again", got, want)
	if cached(got) == 0 {
		t.Error("nothing is shared")
	}
}

// Every byte of the store may rot: no answer changes.
func TestNoFlippedBitReachesTheEngine(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(8, 5)
	want := reference(t, nil, ps)
	e := newInstance(t, n, nil)
	same(t, "first run", e.run("first", ps), want)
	random := rand.New(rand.NewPCG(1, 2))
	detected := uint64(0)
	for round := range 6 {
		n.stop()
		flipPayloads(t, n.dir, random)
		n.start()
		got := e.run(fmt.Sprint("round", round), ps)
		same(t, fmt.Sprintf("round %d", round), got, want)
		detected += n.status().Store.Corrupt
	}
	if detected == 0 {
		t.Error("no flipped bit was noticed: the test flips nothing that is read")
	}
}

// flipPayloads flips bits in every second record of the store: in header or payload.
func flipPayloads(t *testing.T, dir string, random *rand.Rand) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // a directory
		}
		changed := false
		for at := 0; at+8192 <= len(b); at += 4096 {
			if string(b[at:at+8]) == "KVCNREC1" && random.IntN(2) == 0 {
				// Up to the first payload page; the rest of a header is padding that its own
				// checksum covers.
				b[at+random.IntN(8192)] ^= 1 << random.IntN(8)
				changed = true
			}
		}
		if changed {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What must not be shared is not: no hit, no error, right answers.
func TestOtherModelsAndLayoutsMissCleanly(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(9, 3)
	base := newInstance(t, n, nil)
	base.run("base", ps)
	n.saved()
	for name, change := range map[string]func(*engine.Options){
		"other weights":    func(o *engine.Options) { o.Model = model.Tiny(2) },
		"other block size": func(o *engine.Options) { o.BlockSize = 16 },
		"other shape":      func(o *engine.Options) { o.Model.Layers++ },
		"other ranks":      func(o *engine.Options) { o.TensorParallel = 2 },
		"other stages":     func(o *engine.Options) { o.PipelineParallel = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			other := newInstance(t, n, change)
			got := other.run("other", ps[:1])
			same(t, name, got, reference(t, change, ps[:1]))
			if c := got[0].CachedTokens; c != 0 {
				t.Errorf("%d tokens came from another namespace", c)
			}
		})
	}
	for name, declare := range map[string]func(*connector.Manifest){
		"other dtype":          func(m *connector.Manifest) { m.KVDType = "bfloat16" },
		"other revision":       func(m *connector.Manifest) { m.Revision = "next" },
		"other engine version": func(m *connector.Manifest) { m.Engine = "kvconn-engine/next" },
		"other layout": func(m *connector.Manifest) {
			m.Groups = append([]connector.Group(nil), m.Groups...)
			m.Groups[0].Layout += "-transposed"
		},
		"other kernel": func(m *connector.Manifest) { m.Extra = map[string]string{"isa": "amx"} },
	} {
		t.Run(name, func(t *testing.T) {
			got := newInstanceOf(t, n, nil, declare).run("other", ps[:1])
			same(t, name, got, reference(t, nil, ps[:1]))
			if c := got[0].CachedTokens; c != 0 {
				t.Errorf("%d tokens came from another namespace", c)
			}
		})
	}
	got := base.run("base again", ps)
	if cached(got) == 0 {
		t.Errorf("the same model has no hit: %+v", n.status().Store)
	}
}

func TestScopesAreSeparate(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	p := prompts(10, 1)[0]
	e := newInstance(t, n, nil)
	run := func(id, salt string) engine.Result {
		q := engine.Request{ID: id, Prompt: p, MaxTokens: 4}
		q.Scope.Salt = salt
		rs, err := e.Run(t.Context(), []engine.Request{q})
		if err != nil {
			t.Fatal(err)
		}
		return rs[0]
	}
	run("1", "tenant a")
	n.saved()
	if r := run("2", "tenant b"); r.CachedTokens != 0 {
		t.Errorf("tenant b got %d tokens of tenant a", r.CachedTokens)
	}
	if r := run("3", "tenant a"); r.CachedTokens == 0 {
		t.Error("tenant a has no hit")
	}
}

// An engine whose memory is smaller than it says is told so, and goes on without cache.
func TestDescriptorTooSmallForTheLayoutIsAClearErrorAndNoHit(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	withEngine(t, n, func() {
		ps := prompts(120, 3) // which have been saved
		e := newInstance(t, nil, nil)
		co := client.Options{Socket: n.socket, Engine: "small", Manifest: e.Manifest(), RetryInterval: time.Millisecond}
		scheduler, err := client.NewScheduler(co)
		if err != nil {
			t.Fatal(err)
		}
		defer scheduler.Close()
		l := e.Layout(0)
		l.Groups[0].Blocks++
		w, err := client.NewWorker(co, 0, l, []*os.File{e.File(0)})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "bad layout") {
			t.Errorf("Connect = %v, want a bad layout", err)
		}
		e.Attach(scheduler, w)
		got := e.run("small", ps)
		same(t, "descriptor too small", got, reference(t, nil, ps))
		if cached(got)+recomputed(got) > 0 {
			t.Errorf("%d tokens came into memory that was refused, %d were offered", cached(got), recomputed(got))
		}
		if !strings.Contains(n.log.String(), "KV memory of a rank cannot be used") {
			t.Error("the daemon's log does not say that it refused the memory")
		}
		// An engine that copies for itself does not even begin.
		co.Handoff = true
		if _, err := engine.NewWorkerClient(co, 0, l, []*os.File{e.File(0)}); !errors.Is(err, connector.ErrLayout) {
			t.Errorf("handoff: %v, want a bad layout", err)
		}
	})
}

func TestSecondDaemonOnOneDirectoryIsRefusedAndHurtsNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	withEngine(t, n, func() {
		second := newNode(t)
		second.dir = n.dir
		out, err := second.command().CombinedOutput()
		if holder := fmt.Sprintf("process %d", n.cmd.Process.Pid); err == nil || !strings.Contains(string(out), "in use") || !strings.Contains(string(out), holder) {
			t.Errorf("a second daemon on the directory: %v, want %q in %s", err, holder, out)
		}
		second.dir, second.socket = second.dir+"2", n.socket
		out, err = second.command().CombinedOutput()
		if err == nil || !strings.Contains(string(out), "socket is in use") {
			t.Errorf("a second daemon on the socket: %v, %s", err, out)
		}
		if s := n.status(); s.PID != n.cmd.Process.Pid {
			t.Error("the first daemon is no longer reachable")
		}
	})
}

func TestUnusableDirectoryIsAClearError(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, dir := range []string{"/proc/kvconn", filepath.Join(os.Args[0], "below-a-file")} {
		n.dir = dir
		out, err := n.command().CombinedOutput()
		if _, exited := err.(*exec.ExitError); !exited || !strings.Contains(string(out), dir) || strings.Contains(string(out), "goroutine") {
			t.Errorf("store in %s: %v, %s", dir, err, out)
		}
	}
}
