package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/daemon"
)

// startOnSmallDisk starts the daemon with its directory on a file system of 48 MiB of its
// own, in a mount namespace, and sets n.dir to the way into it.
func (n *node) startOnSmallDisk() {
	n.t.Helper()
	path, err := daemonBinary()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	flags := "-rm"
	if os.Getuid() == 0 {
		flags = "-m"
	}
	if out, err := exec.Command("unshare", flags, "mount", "-t", "tmpfs", "none", n.dir).CombinedOutput(); err != nil {
		n.t.Skipf("no file system can be mounted here: %v, %s", err, out)
	}
	script := fmt.Sprintf(`mount -t tmpfs -o size=48m none %[1]q && exec %[2]q serve --dir %[1]q --socket %[3]q --http 127.0.0.1:0 --max-bytes 40MiB`, n.dir, path, n.socket)
	n.launch(exec.Command("unshare", flags, "sh", "-c", script))
	n.dir = filepath.Join("/proc", fmt.Sprint(n.cmd.Process.Pid), "root", n.dir)
	n.waitReady()
}

// fill takes all space of the directory's file system, and returns the file that has it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fill")
	f, err := os.Create(path)
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
// what is wrong, also of engines that connect meanwhile.
func TestFullDiskCostsSavesOnlyAndIsToldByHealth(t *testing.T) {
	n := newNode(t)
	n.startOnSmallDisk()
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
		e.run(fmt.Sprintf("full-%d", round), prompts(50+round, 4))
		return !healthy(t, info.HTTP)
	})
	same(t, "with a full disk", e.run("full", ps), want)
	other := newInstanceOf(t, n, nil, func(m *connector.Manifest) { m.Revision = "other" })
	n.wait("refused engines to be noticed", func() bool {
		same(t, "engine that is refused", other.run("other", ps), want)
		return slices.ContainsFunc(n.status().Health.Reasons, func(r daemon.HealthReason) bool { return r.Code == "engines_refused" && r.Remedy != "" })
	})
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	same(t, "with room again", e.run("again", ps), want)
	same(t, "engine that was refused", other.run("again", ps), want)
}
