package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/health"
)

// startOnSmallDisk starts the daemon with its directory on a file system of 48 MiB of its
// own, in a mount namespace, with more settings, and sets n.dir to the way into it.
func (n *node) startOnSmallDisk(more string) {
	n.t.Helper()
	n.startOnMount("", more)
}

// startOnMount does so with the file system mounted on a directory below the daemon's.
func (n *node) startOnMount(below, more string) {
	n.t.Helper()
	at := filepath.Join(n.dir, below)
	path, err := daemonBinary()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		n.t.Fatal(err)
	}
	flags := "-rm"
	if os.Getuid() == 0 {
		flags = "-m"
	}
	if out, err := exec.Command("unshare", flags, "mount", "-t", "tmpfs", "none", at).CombinedOutput(); err != nil {
		n.t.Skipf("no file system can be mounted here: %v, %s", err, out)
	}
	script := fmt.Sprintf(`mount -t tmpfs -o size=48m none %[5]q && exec %[2]q serve --dir %[1]q --socket %[3]q --http 127.0.0.1:0 %[4]s`, n.dir, path, n.socket, more, at)
	n.launch(exec.Command("unshare", flags, "sh", "-c", script))
	n.dir = filepath.Join("/proc", fmt.Sprint(n.cmd.Process.Pid), "root", n.dir)
	n.waitReady()
}

// fill takes all space that is left in the directory's file system, and returns the file that has it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fill")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return path
}

func healthy(t *testing.T, addr string) bool {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// A disk that others have filled costs hits and nothing else. The daemon stays up and says
// what is wrong; engines of new models that connect meanwhile go on too.
func TestFullDiskCostsSavesOnlyAndIsToldByHealth(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startOnSmallDisk("--max-bytes 40MiB --min-free 0")
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	if !healthy(t, info.HTTP) {
		t.Error("unhealthy at the start")
	}
	ps := prompts(50, 4)
	want := reference(t, nil, ps)
	e := newInstance(t, n, nil)
	same(t, "with room", e.run("room", ps), want)
	taken := fill(t, n.dir)
	round := 0
	n.wait("the full disk to be noticed", func() bool {
		round++
		fill(t, n.dir) // the journal gives room back, and goes on with it
		e.run(fmt.Sprintf("full-%d", round), prompts(50+round, 4))
		return !healthy(t, info.HTTP)
	})
	same(t, "with a full disk", e.run("full", ps), want)
	other := newInstanceOf(t, n, nil, func(m *connector.Manifest) { m.Revision = "other" })
	same(t, "engine of a model that is new", other.run("other", ps), want)
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	same(t, "with room again", e.run("again", ps), want)
	same(t, "engine of that model with room again", other.run("again", ps), want)
}

// B11: a stop on a full disk ends in order, and the next start finds what was durable.
func TestAStopOnAFullDiskEndsInOrder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startOnSmallDisk("--max-bytes 40MiB --min-free 0")
	e := newInstance(t, n, nil)
	e.run("first", prompts(70, 4))
	n.saved()
	e.close()
	fill(t, n.dir)
	n.stop()
	if !strings.Contains(n.log.String(), "stopped gracefully") {
		t.Error("the daemon's log does not say that it stopped gracefully")
	}
}

// B1: others fill the disk. The store gives segments back until min_free is free again, or it
// has nothing left to give, which health says; it grows again when there is room.
func TestAStoreGivesBackWhatOthersNeed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startOnSmallDisk("--max-bytes 40MiB --min-free 25%")
	e := newInstance(t, n, nil)
	for round := range 12 {
		e.run(fmt.Sprint("fill-", round), prompts(80+round, 4))
	}
	n.saved()
	st := n.status().Store
	if st.FileSystemBytes != 48<<20 || st.MinFreeBytes != 12<<20 || st.Records == 0 || st.Segments < 3 {
		t.Fatalf("%+v", st)
	}
	others := filepath.Join(n.dir, "others")
	if err := os.WriteFile(others, make([]byte, st.FreeBytes-st.MinFreeBytes+512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	n.wait("segments to be given back", func() bool { s := n.status().Store; return s.Segments < st.Segments && s.FreeBytes >= s.MinFreeBytes })
	// The store may take some of it meanwhile: then the disk is just as full.
	err := os.WriteFile(others+"2", make([]byte, n.status().Store.FreeBytes-1<<20), 0o600)
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	n.wait("health to say so", func() bool {
		h := n.status().Health
		return slices.ContainsFunc(h.Reasons, func(r health.Reason) bool { return r.Code == "disk_low" && r.Remedy != "" })
	})
	ps := prompts(150, 3)
	same(t, "while nothing is left", e.run("low", ps), reference(t, nil, ps))
	if err := errors.Join(os.Remove(others), os.Remove(others+"2")); err != nil {
		t.Fatal(err)
	}
	round := 0
	n.wait("saving again", func() bool {
		round++
		e.run(fmt.Sprint("again-", round), prompts(200+round, 2))
		s := n.status()
		return s.Health.OK && s.Store.Writes > st.Writes && s.Store.Records > 0
	})
	n.stop()
}

// Segments may be a mount of their own. The default cap, and what is left free, are those of
// that file system, not of the directory's.
func TestSegmentsOnAMountOfTheirOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startOnMount("segments", "--min-free 25%")
	e := newInstance(t, n, nil)
	for round := range 12 {
		e.run(fmt.Sprint("fill-", round), prompts(80+round, 4))
	}
	n.saved()
	st := n.status().Store
	if st.FileSystemBytes != 48<<20 || st.MinFreeBytes != 12<<20 || st.MaxBytes > 48<<20 || st.Records == 0 || st.Segments < 2 {
		t.Fatalf("%+v", st)
	}
	others := filepath.Join(n.dir, "segments", "others")
	if err := os.WriteFile(others, make([]byte, st.FreeBytes-st.MinFreeBytes+512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	n.wait("segments to be given back", func() bool { s := n.status().Store; return s.Segments < st.Segments && s.FreeBytes >= s.MinFreeBytes })
	n.stop()
}
