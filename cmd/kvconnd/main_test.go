package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/cli/upkeep"
	"github.com/kvconn/kvconn/internal/demo"
)

// beKvconnd makes the test binary the program itself, for the processes that the demo
// starts.
const beKvconnd = "KVCONND_TEST_IS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beKvconnd) != "" {
		main()
	}
	// A setting of the shell's, or the seed of other packages' tests, is no business of these. What
	// begins with KVCONN_TEST_ is for tests and no setting.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "KVCONN_") && !strings.HasPrefix(name, "KVCONN_TEST_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// kvconnd runs one command line.
func kvconnd(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(args, &terminal.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

func TestConfigVLLMPrintsTheJSONAndNothingElse(t *testing.T) {
	status, out, errs := kvconnd("config", "vllm", "--socket", "/run/x.sock")
	want := `{"kv_connector":"KVConnConnector","kv_connector_module_path":"kvconn.vllm","kv_role":"kv_both",` +
		`"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"socket":"/run/x.sock"}}` + "\n"
	if status != 0 || out != want || errs != "" {
		t.Errorf("status %d, %q, %q; want %q", status, out, errs, want)
	}
}

func TestUsageErrorsSayWhatToDo(t *testing.T) {
	for want, args := range map[string][]string{
		`did you mean "serve"`:     {"serv"},
		"unknown flag --sockt":     {"serve", "--sockt", "x"},
		"dir is not set":           {"serve"},
		"--interval is 1ms":        {"status", "--watch", "--interval", "1ms"},
		"this machine alone":       {"serve", "--dir", "d", "--pprof", "10.0.0.1:1"},
		"is no size":               {"serve", "--dir", "d", "--max-bytes", "lots"},
		"must be one of":           {"serve", "--dir", "d", "--log-level", "loud"},
		"--layers is 0":            {"bench", "load", "--layers", "0"},
		"--record-bytes is 0":      {"bench", "store", "--record-bytes", "0"},
		"--records is -5":          {"bench", "index", "--records=-5"},
		"--calls is 0":             {"bench", "leader", "--calls", "0"},
		"http_remote":              {"serve", "--dir", "d", "--http", "0.0.0.0:1"},
		"is kvconnd serve running": {"status", "--http", "127.0.0.1:1"},
		"no daemon serves":         {"status", "--dir", t.TempDir()},
		"configuration file":       {"serve", "--config", "/nowhere.yaml"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for want, args := range map[string][]string{
		"kvconnd/":    {"--version"},
		"--max-bytes": {"serve", "--help"},
		"demo":        {"--help"},
		"linux/":      {"version"},
		`"go": "go1.`: {"version", "--json"},
	} {
		if status, out, errs := kvconnd(args...); status != 0 || !strings.Contains(out, want) || errs != "" {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}

// Flags override the environment, which overrides the file, which overrides the defaults.
func TestSettingsPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	text := "dir: /from-file\nsocket: /from-file.sock\nmax_bytes: 3GiB\nload_timeout: 3s\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVCONN_SOCKET", "/from-env.sock")
	t.Setenv("KVCONN_MAX_BYTES", "2GiB")
	for name, args := range map[string][]string{
		"by flag":        {"serve", "--config", file, "--max-bytes", "1GiB"},
		"by environment": {"serve", "--max-bytes", "1GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "by environment" {
				t.Setenv("KVCONN_CONFIG", file)
			}
			c := new(cli)
			p, err := newParser(t.Context(), c, &terminal.Streams{Out: new(bytes.Buffer), Err: new(bytes.Buffer)}, new(settings.Resolver), func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Parse(args); err != nil {
				t.Fatal(err)
			}
			s := c.Serve.Serve
			if s.Dir != "/from-file" || s.Socket != "/from-env.sock" || s.MaxBytes.Bytes != 1<<30 || s.LoadTimeout != 3*time.Second || s.LogLevel != "info" {
				t.Errorf("settings %+v", s)
			}
		})
	}
}

func TestUnknownSettingInTheFileIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("dir: /d\nsockt: /x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := kvconnd("serve", "--config", file); status == 0 || !strings.Contains(errs, `did you mean "socket"?`) {
		t.Errorf("status %d, %q", status, errs)
	}
}

// The demo is the README's first command: every answer is the same with the cache as
// without, and the flipped bit is noticed.
func TestDemo(t *testing.T) {
	if os.Getenv("KVCONN_TEST_LONG") == "" {
		t.Skip("the demo's model takes half a minute; KVCONN_TEST_LONG=1 runs it")
	}
	t.Setenv(beKvconnd, "1")
	// Of another daemon, and no business of the demo's.
	t.Setenv("KVCONN_MIN_OFFER_TOKENS", "100000")
	t.Setenv("KVCONN_CONFIG", "/nowhere.yaml")
	keep := filepath.Join(t.TempDir(), "store")
	status, out, errs := kvconnd("demo", "--json", "--keep", keep)
	if status != 0 {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	var r demo.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if !r.OK() || len(r.Rows) < 5 {
		t.Errorf("report %+v", r)
	}
	for _, row := range r.Rows {
		if row.CachedTokens < row.PromptTokens*9/10 || row.DiskTokens == 0 || row.TTFTColdS <= 0 || row.TTFTCachedS <= 0 {
			t.Errorf("row %+v: want nearly all tokens from the cache, some from disk", row)
		}
	}
	if r.Corruption.RecomputedTokens == 0 {
		t.Error("nothing was recomputed after the flipped bit")
	}
	if r.Store != keep {
		t.Errorf("store left in %q, want %q", r.Store, keep)
	}
	if status, _, errs := kvconnd("demo", "--keep", keep); status == 0 || !strings.Contains(errs, "not empty") {
		t.Errorf("a second demo on the same store: status %d, %q", status, errs)
	}
}

// Whoever types the name alone, or help, sees all commands.
func TestHelpIsGivenHoweverItIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   []string
	}{
		{nil, exitUsage, []string{"serve", "router", "status", "config", "doctor", "demo", "fsck", "gc", "key", "bench", "replay"}},
		{[]string{"help"}, 0, []string{"serve", "replay"}},
		{[]string{"help", "serve"}, 0, []string{"--max-bytes"}},
		{[]string{"help", "bench", "store"}, 0, []string{"--record-bytes"}},
	} {
		status, out, errs := kvconnd(c.args...)
		for _, want := range c.want {
			if status != c.status || !strings.Contains(out, want) || errs != "" {
				t.Errorf("%q: status %d, %q %q, want %q", c.args, status, out, errs, want)
			}
		}
	}
}

func TestErrorsAreForPeople(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte("max_byte: 1\nsockett: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"kvconnd: --dir needs a value\n":             {"serve", "--dir"},
		"there is no port 99999":                     {"serve", "--dir", "x", "--http", "127.0.0.1:99999"},
		"\nkvconnd: unknown key":                     {"serve", "--config", file},
		`kvconnd: settings: http "0.0.0.0:1" is not`: {"config", "show", "--dir", "d", "--http", "0.0.0.0:1"},
		"make a directory for temporary files: ":     {"bench", "store", "--dir", filepath.Join(filepath.Dir(file), "missing")},
	} {
		status, _, errs := kvconnd(args...)
		if status == 0 || !strings.Contains(errs, want) || strings.Contains(errs, file) && strings.Contains(errs, "Try ") {
			t.Errorf("%q: status %d, %q, want %q", args, status, errs, want)
		}
		for line := range strings.Lines(errs) {
			if !strings.HasPrefix(line, "kvconnd: ") && !strings.HasPrefix(line, "Try ") && !strings.HasPrefix(line, "time=") {
				t.Errorf("%q: line %q", args, line)
			}
		}
	}
}

// Ctrl-C is no failure that needs an explanation.
func TestAnInterruptedCommandSaysSo(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	failure := errors.New("no disk")
	for _, c := range []struct {
		ctx    context.Context
		err    error
		status int
		text   string
	}{
		{t.Context(), nil, 0, ""},
		{interrupted, nil, 0, ""},
		{interrupted, fmt.Errorf("read: %w", context.Canceled), exitInterrupted, "kvconnd: interrupted\n"},
		{interrupted, failure, 1, "kvconnd: no disk\n"},
		{t.Context(), context.Canceled, 1, "kvconnd: context canceled\n"},
		{t.Context(), upkeep.MendedError{Err: failure}, exitMended, "kvconnd: no disk\n"},
	} {
		var errs bytes.Buffer
		if status := ended(c.ctx, &terminal.Streams{Err: &errs}, c.err); status != c.status || errs.String() != c.text {
			t.Errorf("%v: status %d, %q", c.err, status, &errs)
		}
	}
}
