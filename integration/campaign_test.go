package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/integration/campaign"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/internal/testkit/faultfs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk"
)

// What a campaign takes from its environment; docs/reliability.md lists it.
const (
	timeVariable   = "KVCONN_CAMPAIGN_TIME"
	killsVariable  = "KVCONN_CAMPAIGN_KILLS"
	trialsVariable = "KVCONN_CAMPAIGN_TRIALS"
	scriptVariable = "KVCONN_CAMPAIGN_SCRIPT"
	onlyVariable   = "KVCONN_CAMPAIGN_ONLY"
)

// daemonEnviron is this process's environment without what is the tests' own: the daemon refuses
// variables of its prefix that it does not know. The user's credentials are none of the tests'.
func daemonEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KVCONN_") || strings.HasPrefix(v, "AWS_")
	})
}

// campaignTime is how long a campaign may begin something new.
func campaignTime(t *testing.T) time.Duration {
	t.Helper()
	d := time.Second
	if text := os.Getenv(timeVariable); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", timeVariable, err)
		}
	}
	return d
}

func knownFailures(t *testing.T) campaign.Known {
	t.Helper()
	k, err := campaign.ReadKnown(filepath.Join("campaign", "testdata", "known.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Daemon and engines are killed under load on a disk so small that it evicts all the time,
// with records of several sizes: no answer changes, and the cap is never passed.
func TestCampaignKills(t *testing.T) {
	const limit = 12 << 20
	n := newMemoryNode(t, "--max-bytes", "12MiB")
	watched := campaign.WatchCap(n.dir, limit)
	randomKills(t, n, seed.Of(t), int(seed.Number(t, killsVariable, int64(rounds(1, 1000)))))
	if err := watched(); err != nil {
		t.Error(err)
	}
	st := n.status().Store
	t.Logf("at the end %d records of %d bytes, %d evicted since the last start", st.Records, st.PhysicalBytes, st.Evicted)
	n.stop()
}

// Whole nodes under random scripts of faults: engines compare their tokens with those of
// engines without a cache.
func TestCampaignSystem(t *testing.T) {
	t.Parallel()
	base, deadline := seed.Of(t), time.Now().Add(campaignTime(t))
	most, counted := seed.Number(t, trialsVariable, 1<<62), os.Getenv(trialsVariable) != ""
	known := knownFailures(t)
	for n := int64(0); n < most && (counted || n == 0 || time.Now().Before(deadline)); n++ {
		drawn := base + uint64(n)
		script := campaign.RandomScript(rand.New(rand.NewPCG(drawn, 1)))
		if text := os.Getenv(scriptVariable); text != "" {
			if n > 0 {
				return
			}
			var err error
			if script, err = fault.Parse(text); err != nil {
				t.Fatal(err)
			}
			underFaults(t, drawn, script)
			return
		}
		out, err := systemRun(t.Context(), drawn, script)
		if err == nil {
			continue
		}
		if known.Has("system") {
			t.Logf("known: seed %d: %s", drawn, script)
			continue
		}
		again := func(s []fault.Clause) bool { _, err := systemRun(t.Context(), drawn, s); return err != nil }
		small := fault.Script(campaign.Reduce(script, 20, again))
		t.Errorf("seed %d: %v\n%s\nreduced; run it again with\n%s=%d %s='%s' go test -run 'CampaignSystem$' ./integration",
			drawn, err, out, seed.Variable, drawn, scriptVariable, small)
	}
}

// systemRun runs a script in a process of its own, which may hang or break.
func systemRun(ctx context.Context, drawn uint64, script fault.Script) (out []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 11*waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCampaignSystem$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), fmt.Sprint(seed.Variable, "=", drawn), scriptVariable+"="+script.String()+" #")
	out, err = cmd.CombinedOutput()
	if !bytes.Contains(out, []byte("PASS: TestCampaignSystem")) {
		err = errors.Join(errors.New("the run failed"), err)
	}
	return out, err
}

// underFaults is one run of a node under a script.
func underFaults(t *testing.T, drawn uint64, script fault.Script) {
	t.Helper()
	const limit = 12 << 20
	g := rand.New(rand.NewPCG(drawn, 2))
	t.Logf("script:\n%v", script)
	n, i := newMemoryNode(t), fault.NewInjector(script)
	serve := func() {
		n.serve(func(o *daemon.Options) {
			o.MaxBytes, o.HostBytes = limit, 8<<20
			o.LoadTimeout, o.StageTimeout = 2*time.Second, hangTimeout
			o.Store = func(s disk.Options) disk.Options {
				s.BarrierInterval, s.SlotWait = 20*time.Millisecond, 200*time.Millisecond
				return faultfs.Under(s, i)
			}
		})
	}
	serve()
	watched := campaign.WatchCap(n.dir, limit)
	var engines []*instance
	vs := variants()
	known := prompts(300+g.IntN(100), 3)
	for range 2 {
		v := vs[g.IntN(len(vs))]
		e := newInstance(t, n, v.change)
		want := reference(t, v.change, known)
		same(t, "before the faults", e.run("before", known), want)
		engines = append(engines, e)
		n.saved()
		i.On()
		for round := range 3 {
			same(t, "under faults", e.run(fmt.Sprint("faults", round), known), want)
			fresh := prompts(400+g.IntN(400), 2)
			same(t, "under faults, new prompts", e.run(fmt.Sprint("new", round), fresh), reference(t, v.change, fresh))
			e.Reset(t.Context())
		}
		i.Off()
		worksAgain(t, n, e, v, g)
	}
	t.Logf("%d operations met a fault", i.Injected())
	for _, e := range engines {
		e.close()
	}
	n.waitLetGo()
	if err := watched(); err != nil {
		t.Error(err)
	}
	// What is saved after the faults is on the disk: it outlives the daemon.
	n.stop()
	serve()
	v := vs[0]
	e := newInstance(t, n, v.change)
	worksAgain(t, n, e, v, g)
	e.close()
}

// worksAgain has an engine save prompts that nobody has saved and load them again, which has
// to work within some tries.
func worksAgain(t *testing.T, n *node, e *instance, v variant, g *rand.Rand) {
	t.Helper()
	try := 0
	n.wait("saves and loads to work again", func() bool {
		if try++; try > 100 {
			t.Fatalf("saves and loads do not work after %d tries; %+v", try-1, n.status().Health)
		}
		fresh := prompts(1000+g.IntN(1000), 2)
		want := reference(t, v.change, fresh)
		e.Reset(t.Context())
		same(t, "after the faults", e.run(fmt.Sprintf("saves-%p-%d", e, try), fresh), want)
		n.saved()
		e.Reset(t.Context())
		got := e.run(fmt.Sprintf("loads-%p-%d", e, try), fresh)
		same(t, "after the faults, again", got, want)
		return cached(got) > 0 && n.status().Store.WriteInFlightBytes == 0
	})
}

// The real daemon starts on every damaged store, serves engines, and leaves what was intact.
func TestCampaignDaemonDamage(t *testing.T) {
	t.Parallel()
	work, err := os.MkdirTemp("/dev/shm", "kvconn-campaign-")
	if err != nil {
		work = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	o, err := campaign.NewOriginal(filepath.Join(work, "original"))
	if err != nil {
		t.Fatal(err)
	}
	base, known := seed.Of(t), knownFailures(t)
	cells := campaign.CellsLike(o.Cells(), os.Getenv(onlyVariable))
	order := rand.New(rand.NewPCG(base, 1)).Perm(len(cells))
	most := seed.Number(t, trialsVariable, 1<<62)
	deadline := time.Now().Add(campaignTime(t))
	counted := os.Getenv(trialsVariable) != ""
	var table campaign.Table
	for n := int64(0); n < most && (counted || n == 0 || time.Now().Before(deadline)); n++ {
		trial := campaign.Trial{Cell: cells[order[n%int64(len(order))]], Seed: base + uint64(n)}
		dir := filepath.Join(work, fmt.Sprint("trial-", n))
		out := daemonTrial(t, o, trial, dir)
		table.Add(out)
		if len(out.Failures) == 0 {
			continue
		}
		text := fmt.Sprintf("%v: %s: %s", trial, out.Damage, strings.Join(out.Failures, "; "))
		if known.Has(trial.String()) {
			t.Logf("known: %s", text)
		} else {
			t.Error(text)
		}
	}
	var text strings.Builder
	_, _ = table.WriteTo(&text)
	t.Logf("%d trials, seed %d\n%s", table.Trials(), base, &text)
}

// daemonTrialCap has room for what an engine saves beside all records.
const daemonTrialCap = 64 << 20

// daemonTrial starts a daemon on a damaged store, has an engine use it, stops it and looks at
// what is left.
func daemonTrial(t *testing.T, o *campaign.Original, trial campaign.Trial, dir string) *campaign.Outcome {
	t.Helper()
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n := newNodeIn(t, dir, "--max-bytes", fmt.Sprint(daemonTrialCap))
	a, err := trial.Prepare(o, n.dir)
	if err != nil {
		t.Fatal(err)
	}
	out := a.Outcome()
	if err := n.tryStart(a.Script()); err != nil {
		out.Fail("the daemon: %v", err)
		return out
	}
	var said []string
	for line := range strings.Lines(n.log.String()) {
		if strings.Contains(line, "level=WARN") {
			said = append(said, line)
		}
	}
	ps := prompts(70, 2)
	want := reference(t, nil, ps)
	e := newInstance(t, n, nil)
	same(t, trial.String(), e.run("first", ps), want)
	n.saved()
	got := e.run("second", ps)
	same(t, trial.String()+", again", got, want)
	if cached(got) == 0 {
		out.Fail("the daemon: nothing that was saved after the start was loaded")
	}
	e.close()
	n.stop()
	a.Look(daemonTrialCap)
	out.Warnings = said
	if len(said) == 0 && out.Kept < out.Intact {
		out.Fail("the daemon: records were lost and nothing was said")
	}
	return out
}

// scriptedDaemon says what a daemon's process serves, and under what faults.
type scriptedDaemon struct {
	Dir, Socket, Script string
	MaxBytes            int64
}

// serve is kvconnd with the faults below its store.
func (d *scriptedDaemon) serve(ctx context.Context) error {
	script, err := fault.Parse(d.Script)
	if err != nil {
		return err
	}
	i := fault.NewInjector(script)
	i.On()
	return daemon.Run(ctx, daemon.Options{
		Dir: d.Dir, Socket: d.Socket, HTTP: "127.0.0.1:0", MaxBytes: d.MaxBytes, HostBytes: 64 << 20,
		StageTimeout: 10 * time.Second, LoadTimeout: waitLimit,
		Store:  func(o disk.Options) disk.Options { return faultfs.Under(o, i) },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// tryStart starts the daemon, in a process of its own, and waits until it serves or has ended.
// With a script it is the same daemon in the tests' program, with the faults below it.
func (n *node) tryStart(script string) error {
	n.t.Helper()
	cmd := n.command()
	if script != "" {
		b, err := json.Marshal(&scriptedDaemon{n.dir, n.socket, script, daemonTrialCap})
		if err != nil {
			n.t.Fatal(err)
		}
		cmd = exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), scriptedVariable+"="+string(b))
	}
	n.launch(cmd)
	pid := n.cmd.Process.Pid
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if info, err := daemon.ReadInfo(n.dir); err == nil && info.PID == pid {
			n.waitReady()
			return nil
		}
		if n.ended() {
			_ = n.cmd.Wait()
			n.cmd = nil
			return fmt.Errorf("ended: %s", lastLine(n.log.String()))
		}
	}
	n.kill()
	return errors.New("does not become ready")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
