package integration

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon"
)

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return string(b)
}

func TestHTTPShowsWhatTheDaemonDoes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	ps := prompts(20, 3)
	e := newInstance(t, n, nil)
	e.run("first", ps)
	n.saved()
	loaded := cached(e.run("second", ps))
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/healthz": `"ok": true`, "/readyz": `"ready": true`, "/openapi.yaml": "openapi: 3.1"} {
		if got := get(t, "http://"+info.HTTP+path); !strings.Contains(got, want) {
			t.Errorf("%s = %q, want %q in it", path, got, want)
		}
	}
	metrics := get(t, "http://"+info.HTTP+"/metrics")
	for _, name := range []string{
		"kvconn_store_records", "kvconn_store_physical_bytes", "kvconn_engines", "kvconn_match_duration_seconds_count", "go_goroutines",
	} {
		if !strings.Contains(metrics, "\n"+name+" ") || !strings.Contains(metrics, "# HELP "+strings.TrimSuffix(name, "_count")+" ") || strings.Contains(metrics, "\n"+name+" 0\n") {
			t.Errorf("/metrics has no %s with help and a value", name)
		}
	}
	for _, name := range []string{
		`kvconn_loaded_bytes_total{model="kvconn-tiny"}`, `kvconn_saved_blocks_total{model="kvconn-tiny"}`, `kvconn_tier_records{tier="disk"}`,
		`kvconn_prompt_tokens_total{model="kvconn-tiny",source="computed"}`, `kvconn_prompt_tokens_total{model="kvconn-tiny",source="host"}`,
	} {
		if !strings.Contains(metrics, "\n"+name+" ") || strings.Contains(metrics, "\n"+name+" 0\n") {
			t.Errorf("/metrics has no %s with a value", name)
		}
	}
	s := n.status()
	if len(s.Engines) != 1 || len(s.Ranks) != 1 || s.Engines[0].Model != "kvconn-tiny" || len(s.Ranks[0].BlockBytes) == 0 {
		t.Fatalf("engines %+v, ranks %+v", s.Engines, s.Ranks)
	}
	if got := s.Ranks[0].Transfers.LoadedBlocks * 8; int(got) != loaded {
		t.Errorf("status counts %d loaded tokens, the engine %d", got, loaded)
	}
	if s.Store.PhysicalBytes > s.Store.MaxBytes || s.Store.Records == 0 {
		t.Errorf("store %+v", s.Store)
	}

	path, err := daemonBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "status", "--dir", n.dir).CombinedOutput()
	for _, want := range []string{"kvconnd/", "kvconn-tiny", "TIER", "ENGINE", "RANK", "1/1"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("status: %v, no %q in\n%s", err, want, out)
		}
	}
}

func TestStopLeavesNothingToConnectTo(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	if info, err := os.Stat(n.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v; want mode 0600", info, err)
	}
	n.stop()
	for _, path := range []string{n.socket, filepath.Join(n.dir, "daemon.json")} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

func TestSettingsComeFromTheFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	path, err := daemonBinary()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("dir: "+n.dir+"\nsocket: "+n.socket+"\nhttp: 'off'\nmax_bytes: 64MiB\nlog_format: json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve")
	cmd.Env = append(daemonEnviron(), "KVCONN_CONFIG="+file)
	n.launch(cmd)
	n.waitReady()
	info, err := daemon.ReadInfo(n.dir)
	if err != nil || info.HTTP != "" {
		t.Errorf("info %+v, %v; want no HTTP", info, err)
	}
	n.stop()
	if !strings.HasPrefix(n.log.String(), "{") || !strings.Contains(n.log.String(), `"max_bytes":67108864`) {
		t.Error("log is not JSON with the file's cap")
	}
}
