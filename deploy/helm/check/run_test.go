package check

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// dialled is the variable that makes the test's program an engine that connects to a socket.
const dialled = "KVCONN_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialled); path != "" {
		os.Exit(dial(path))
	}
	os.Exit(m.Run())
}

// dial connects and waits a little: a daemon closes the connection of a process that may not connect. That is far less
// than the 5 s after which it closes one that says nothing.
func dial(path string) int {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 2
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 3
	}
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return 0
	}
	return 1
}

// copyFile copies a program to where every user may run it.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// The daemon runs with the chart's settings as the pod has it: as a user without rights, in folders that the kubelet has
// given to its group, with a Secret that root mounts. Engines of another user connect by the group, and no others do.
func TestTheDaemonRunsAsInThePod(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	base, err := os.MkdirTemp("", "kvconn-pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	v := parse(t, `{daemon: {keySecret: keys, hostBytes: 64MiB, eventBytes: 16MiB, maxBytes: 64MiB, settings: {min_free: "0"}}}`)
	all := render(t, v)
	pod := daemonSet(t, all).Spec.Template.Spec
	user, group := uint32(*pod.SecurityContext.RunAsUser), uint32(*pod.SecurityContext.FSGroup)
	// As the kubelet does it: root's folders, the group's by mode and the setgid bit.
	for _, dir := range []string{"store", "run", "keys"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o770); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(filepath.Join(base, dir), 0, int(group)), os.Chmod(filepath.Join(base, dir), 0o770|os.ModeSetgid)); err != nil {
			t.Fatal(err)
		}
	}
	program, engine := filepath.Join(base, "kvconnd"), filepath.Join(base, "engine")
	copyFile(t, kvconnd(t), program)
	copyFile(t, os.Args[0], engine)
	keys := filepath.Join(base, "keys", "keys")
	if out, err := exec.Command(program, "key", "new", keys).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := errors.Join(os.Chown(keys, 0, int(group)), os.Chmod(keys, 0o440)); err != nil { // as defaultMode 0400 and fsGroup make it
		t.Fatal(err)
	}
	socket := filepath.Join(base, "run", "kvconnd.sock")
	settings := get[*corev1.ConfigMap](t, all, "ConfigMap "+namespace+"/"+fullname).Data["kvconnd.yaml"]
	settings = strings.NewReplacer("/var/lib/kvconn", filepath.Join(base, "store"), "/run/kvconn/kvconnd.sock", socket, "/etc/kvconn/keys/keys", keys, ":9477", "127.0.0.1:0").Replace(settings)
	file := filepath.Join(base, "kvconnd.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(program, append(pod.Containers[0].Args[:1:1], "--config", file)...)
	cmd.Env = []string{"KVCONN_HTTP_TOKEN=secret"}
	cmd.Stderr = &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: uint32(*pod.SecurityContext.RunAsGroup), Groups: []uint32{group}}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the daemon ended: %v\n%s", err, &log)
		default:
		}
		if time.Since(start) > time.Minute {
			_ = cmd.Process.Kill()
			t.Fatalf("the daemon is not ready\n%s", <-ended)
		}
	}
	for _, c := range []struct {
		who    string
		user   uint32
		groups []uint32
		want   int
	}{{"root", 0, nil, 0}, {"another user in the group", 65534, []uint32{group}, 0}, {"another user", 65534, nil, 2}} {
		e := exec.Command(engine)
		e.Env = []string{dialled + "=" + socket}
		e.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user, Groups: c.groups}}
		if err := e.Run(); e.ProcessState == nil || e.ProcessState.ExitCode() != c.want {
			t.Errorf("%s: %v, want status %d", c.who, err, c.want)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the daemon's stop: %v\n%s", err, &log)
	}
}

// The paths of the probes answer without the token, at once and whatever the state of the store.
func TestTheRoutersProbesAnswer(t *testing.T) {
	all := render(t, parse(t, `{router: {enabled: true, drainTimeout: 2s, drainDelay: 0s, discovery: [{file: /nowhere/ranks.yaml}]}}`))
	c := deployment(t, all).Spec.Template.Spec.Containers[0]
	settings := get[*corev1.ConfigMap](t, all, "ConfigMap "+namespace+"/"+fullname+"-router").Data["router.yaml"]
	file := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(settings, ":9478", "127.0.0.1:0", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	logged := func() []byte { text, _ := os.ReadFile(log.Name()); return text }
	cmd := exec.Command(kvconnd(t), append(c.Args[:1:1], "--config", file)...)
	cmd.Env = []string{"KVCONN_ROUTER_TOKEN=secret"}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the router's stop: %v\n%s", err, logged())
		}
	}()
	listens := regexp.MustCompile(`"http":"([^"]+)"`)
	status := func(path string) int {
		found := listens.FindSubmatch(logged())
		if found == nil {
			return 0
		}
		resp, err := http.Get("http://" + string(found[1]) + path)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for start := time.Now(); status(c.LivenessProbe.HTTPGet.Path) != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("the router never lives\n%s", logged())
		}
	}
	if got := status(c.ReadinessProbe.HTTPGet.Path); got != http.StatusServiceUnavailable { // it has no ranks
		t.Errorf("ready without ranks: %d", got)
	}
	if got := status("/metrics"); got != http.StatusUnauthorized {
		t.Errorf("metrics without a token: %d", got)
	}
}
