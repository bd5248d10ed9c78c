package cuda

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
)

// Ranks register again at once when their copier ends. One that served for long is replaced at once: a rank that is
// refused comes again only after its client's long pause.
func TestACopierThatServedForLongIsReplacedAtOnce(t *testing.T) {
	g := &device{o: &Options{RestartPause: time.Hour, RestartPauseMax: 2 * time.Hour, Logger: slog.New(slog.DiscardHandler)}}
	p := &process{gone: make(chan struct{}), why: errEnded}
	close(p.gone)
	g.watch(p, time.Now().Add(-3*time.Hour))
	if time.Until(g.notUntil) > 0 || g.lastErr == nil {
		t.Errorf("not before %s, for %v", g.notUntil, g.lastErr)
	}
	g.watch(p, time.Now())
	if g.pause != time.Hour || time.Until(g.notUntil) <= 0 {
		t.Errorf("one that ended soon is replaced after %s", g.pause)
	}
	g.watch(p, time.Now())
	if g.pause != 2*time.Hour {
		t.Errorf("a second one after %s", g.pause)
	}
}

// A rank is to register again soon where a copier is started again, and not where there is nothing to start.
func TestOnlyADeviceThatMayServeAgainIsWorthWaitingFor(t *testing.T) {
	slow := func(o *Options) { o.RestartPause, o.RestartPauseMax = time.Hour, time.Hour }
	for name, tc := range map[string]struct {
		change func(*Options)
		env    string
		again  bool
	}{
		"the driver fails at its start": {slow, "FAKECUDA_FAULT=cuMemGetInfo:*:999", true},
		"the copier does not start":     {func(o *Options) { slow(o); o.Command = []string{"false"} }, "", true},
		"there is no driver":            {func(o *Options) { slow(o); o.Library = "/nonexistent/libcuda.so.1" }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, e := newRig(t, tc.change, strings.Fields(tc.env)...), startEngine(t, 0)
			files := e.region(region.IPC, granularity)
			for _, when := range []string{"at its start", "in the pause"} {
				if _, err := r.Open(files); err == nil || errors.Is(err, gpu.ErrAgain) != tc.again {
					t.Errorf("%s: %v", when, err)
				}
			}
		})
	}
	r, e := newRig(t, slow), startEngine(t, 0)
	files := e.region(region.IPC, granularity)
	r.open(files)
	copierOf(t, r).end(errEnded)
	<-copierOf(t, r).gone
	if _, err := r.Open(files); !errors.Is(err, gpu.ErrAgain) {
		t.Errorf("after the copier's end: %v", err)
	}
}

// upgradedMain is a daemon whose program's file has been replaced since its start.
func upgradedMain() error {
	self, err := os.Executable()
	if err == nil {
		err = os.Remove(self)
	}
	if err == nil {
		err = os.WriteFile(self, []byte("#!/bin/sh\necho another version; exit 1"), 0o700)
	}
	if err == nil {
		err = os.Setenv(roleEnv, "copier")
	}
	if err != nil {
		return err
	}
	d, err := New(Options{Library: os.Getenv("KVCONN_TEST_LIBRARY")})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "arena")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := f.Truncate(1 << 20); err != nil {
		return err
	}
	stop, err := d.PinHost(f, make([]byte, 1<<20))
	if err != nil {
		return err
	}
	g, err := d.device("GPU-66616b65-6375-6461-2d67-7075c0da0000") // the stand-in's first
	if err != nil {
		return err
	}
	if _, err = g.copier(); err != nil {
		return err
	}
	return stop()
}

// A daemon that runs on after its package was updated must not get a copier of the new version: both are one program.
func TestCopiersAreOfTheDaemonsVersion(t *testing.T) {
	library := fakeLibrary(t)
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	program := filepath.Join(t.TempDir(), "kvconnd")
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), roleEnv+"=upgraded", "KVCONN_TEST_LIBRARY="+library)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
