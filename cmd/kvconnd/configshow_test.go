package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

// settingsOf runs a command that prints settings as JSON, and returns each with its source.
func settingsOf(t *testing.T, args ...string) map[string]string {
	t.Helper()
	status, out, errs := kvconnd(args...)
	if status != 0 || errs != "" {
		t.Fatalf("status %d, %q", status, errs)
	}
	var list []config.Setting
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, s := range list {
		got[s.Key] = s.Value + " | " + s.From.String()
	}
	return got
}

func TestConfigShowNamesTheSourceOfEveryValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("dir: /from-file\nsocket: /from-file.sock\nload_timeout: 3s\nmax_bytes: 3GiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVCONN_SOCKET", "/from-env.sock")
	t.Setenv("KVCONN_LOG_LEVEL", "") // as good as not set
	var defaults daemon.Options
	defaults.EnsureDefaults()
	got := settingsOf(t, "config", "show", "--config", file, "--max-bytes", "1GiB", "--json")
	for key, want := range map[string]string{
		"dir": "/from-file | file " + file, "socket": "/from-env.sock | environment KVCONN_SOCKET", "load_timeout": "3s | file " + file,
		"max_bytes": "1GiB | flag --max-bytes", "log_level": "info | default", "stop_timeout": "25s | default",
		// Not 0: what it would run with.
		"host_bytes": config.Bytes(hostmemory.DefaultBytes()).String() + " | default", "event_bytes": config.Bytes(defaults.EventBytes).String() + " | default",
		"min_free": "the larger of 5% and 10GiB | default",
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	for text, want := range map[string]string{"": "80% of what is free or its own | default", "0": "80% of what is free or its own | flag --max-bytes", "75%": "75% | flag --max-bytes"} {
		args := []string{"config", "show", "--dir", "/d", "--json"}
		if text != "" {
			args = append(args, "--max-bytes", text)
		}
		if got := settingsOf(t, args...)["max_bytes"]; got != want {
			t.Errorf("a cap of %q is shown as %q, want %q", text, got, want)
		}
	}
	t.Setenv("KVCONN_CONFIG", file)
	status, out, errs := kvconnd("config", "--log-format=json")
	if status != 0 || !strings.Contains(out, "SOURCE") || !strings.Contains(out, "file "+file) || !strings.Contains(out, "flag --log-format") || errs != "" {
		t.Errorf("table: status %d, %q\n%s", status, errs, out)
	}
}

func TestConfigShowPrintsAndRefusesWhatServeRefuses(t *testing.T) {
	status, out, errs := kvconnd("config", "show", "--dir", "/d", "--pprof", "0.0.0.0:6060", "--http-remote")
	if status == 0 || !strings.Contains(out, "0.0.0.0:6060") || !strings.Contains(errs, "not loopback") {
		t.Errorf("status %d, %q\n%s", status, errs, out)
	}
	// Missing memory would be noticed only when it is needed.
	for _, command := range []string{"serve", "config"} {
		if status, _, errs := kvconnd(command, "--dir", "/d", "--host-bytes", "4000TiB"); status == 0 || !strings.Contains(errs, "host_bytes is 4000TiB: there are") || strings.Contains(errs, "KiB of") {
			t.Errorf("%s: status %d, %q", command, status, errs)
		}
	}
}

// However a setting is misspelt, the error names the nearest one.
func TestUnknownSettingNamesTheNearest(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("load_timeuot: 3s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`did you mean "load_timeout"?`:        {"serve", "--dir", dir, "--config", file},
		`did you mean "--load-timeout"?`:      {"serve", "--dir", dir, "--load-timeuot", "3s"},
		`did you mean "--load-staging-bytes"`: {"serve", "--dir", dir, "--loading-stage-bytes", "3"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q; want %q", args, status, errs, want)
		}
	}
	t.Setenv("KVCONN_LOAD_TIMEUOT", "3s")
	for _, command := range []string{"serve", "config"} {
		if status, _, errs := kvconnd(command, "--dir", dir); status == 0 || !strings.Contains(errs, "KVCONN_LOAD_TIMEUOT, did you mean KVCONN_LOAD_TIMEOUT?") {
			t.Errorf("%s: status %d, %q", command, status, errs)
		}
	}
}

// A pod's description may have variables of its own.
func TestForeignVariablesAreNoErrors(t *testing.T) {
	t.Setenv("KVCONN_NODE_NAME", "n")
	if status, _, errs := kvconnd("config", "--dir", t.TempDir()); status != 0 {
		t.Errorf("status %d, %q", status, errs)
	}
	_, _, errs := kvconnd("serve", "--dir", t.TempDir(), "--socket", "/proc/s")
	if !strings.Contains(errs, "names=[KVCONN_NODE_NAME]") || !strings.Contains(errs, "level=WARN") {
		t.Errorf("%q", errs)
	}
}

// Whoever wrote the value finds it again: the error names the file or the variable, and no
// flag that was not given.
func TestSettingOfTheWrongTypeNamesItsSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	for text, want := range map[string]string{
		"load_timeout: soon": "(load_timeout in " + file + ")",
		"max_bytes: lots":    "(max_bytes in " + file + ")",
		"log_level: loud":    "(log_level in " + file + ")",
		"prompts_only: 3":    "(prompts_only in " + file + ")",
		"max_byte: 1":        "kvconnd: configuration file " + file + ": unknown key",
		"- 1":                "kvconnd: configuration file " + file + ": line 1: want settings",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"serve", "config"} {
			if status, out, errs := kvconnd(command, "--config", file); status == 0 || out != "" || !strings.Contains(errs, want) {
				t.Errorf("%s with %q: status %d, %q; want %q", command, text, status, errs, want)
			}
		}
	}
	t.Setenv("KVCONN_LOG_LEVEL", "loud")
	if _, _, errs := kvconnd("serve", "--dir", "d"); !strings.Contains(errs, "(from KVCONN_LOG_LEVEL)") {
		t.Errorf("variable: %q", errs)
	}
	if _, _, errs := kvconnd("serve", "--dir", "d", "--log-level", "louder"); strings.Contains(errs, "(") {
		t.Errorf("flag: %q", errs)
	}
}

// So does an error about a value out of its bounds.
func TestSettingOutOfItsBoundsNamesItsSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("dir: d\nhost_bytes: 1MB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"serve", "config"} {
		if _, _, errs := kvconnd(command, "--config", file); !strings.Contains(errs, "(host_bytes in "+file+")") {
			t.Errorf("%s: file: %q", command, errs)
		}
		if _, _, errs := kvconnd(command, "--dir", "d", "--host-bytes", "1MB"); !strings.Contains(errs, "(--host-bytes)") {
			t.Errorf("%s: flag: %q", command, errs)
		}
	}
	t.Setenv("KVCONN_HOST_BYTES", "1MB")
	t.Setenv("KVCONN_HTTP", "nowhere")
	for _, command := range []string{"serve", "config"} {
		if _, _, errs := kvconnd(command, "--dir", "d"); !strings.Contains(errs, "(from KVCONN_HOST_BYTES)") {
			t.Errorf("%s: variable: %q", command, errs)
		}
	}
	t.Setenv("KVCONN_ROUTER_INDEX_BYTES", "1KB")
	if _, _, errs := kvconnd("router"); !strings.Contains(errs, "(from KVCONN_ROUTER_INDEX_BYTES)") {
		t.Errorf("router: %q", errs)
	}
}

// settingValues are values of every setting that no default is, for file, environment and
// flag.
func settingValues(t *testing.T) map[string][3]string {
	t.Helper()
	values := make(map[string][3]string)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Serve]()) {
		if f.Anonymous {
			continue
		}
		v := [3]string{"/3", "/4", "/5"}
		switch f.Type {
		case reflect.TypeFor[bool]():
			v = [3]string{"true", "true", "true"}
		case reflect.TypeFor[time.Duration]():
			v = [3]string{"3s", "4s", "5s"}
		case reflect.TypeFor[config.Bytes]():
			v = [3]string{"3GiB", "4GiB", "5GiB"}
		case reflect.TypeFor[config.Space](), reflect.TypeFor[config.Cap]():
			v = [3]string{"3%", "4GiB", "5.5%"}
		case reflect.TypeFor[config.Mode]():
			v = [3]string{"0603", "0604", "0605"}
		case reflect.TypeFor[int](), reflect.TypeFor[float64](), reflect.TypeFor[config.IDs]():
			v = [3]string{"3", "4", "5"}
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			all := strings.Split(enum, ",")
			v = [3]string{all[0], all[1], all[len(all)-1]}
		}
		values[config.Key(f.Tag.Get("name"))] = v
	}
	return values
}

// Every setting can be given in each of the three ways, and the nearer one wins.
func TestEverySettingCanBeGivenInEachWay(t *testing.T) {
	values := settingValues(t)
	schema := config.Serve{}
	list := config.Settings(schema, func(string) config.Source { return config.Source{} })
	var file strings.Builder
	var flags []string
	for _, s := range list {
		v := values[s.Key]
		fmt.Fprintf(&file, "%s: %s\n", s.Key, v[0])
		flags = append(flags, "--"+strings.ReplaceAll(s.Key, "_", "-")+"="+v[2])
	}
	path := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for way, kind := range []string{"file", "environment", "flag"} {
		args := []string{"config", "show", "--json", "--config", path}
		switch way {
		case 1:
			for _, s := range list {
				t.Setenv("KVCONN_"+strings.ToUpper(s.Key), values[s.Key][1])
			}
		case 2:
			args = append(args, flags...)
		}
		_, out, errs := kvconnd(args...) // paths and addresses need not be such as serve takes
		var got []config.Setting
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s: %v, %s", kind, err, errs)
		}
		for _, s := range got {
			want := values[s.Key][way]
			if s.Key == "http_token" || s.Key == "otlp_headers" { // a secret is not shown
				want = "********"
			}
			if s.Value != want || !strings.HasPrefix(s.From.String(), kind+" ") {
				t.Errorf("%s from %s: %q from %s, want %q", s.Key, kind, s.Value, s.From, want)
			}
		}
	}
}

func TestConfigSchemaIsJSONOfTheCommandsFile(t *testing.T) {
	for want, args := range map[string][]string{"load_timeout": nil, "max_bytes": {"serve"}, "discovery": {"router"}} {
		status, out, errs := kvconnd(append([]string{"config", "schema"}, args...)...)
		var schema struct {
			Properties map[string]any `json:"properties"`
		}
		if err := json.Unmarshal([]byte(out), &schema); status != 0 || err != nil || schema.Properties[want] == nil {
			t.Errorf("%q: status %d, %v, %s", args, status, err, errs)
		}
	}
	if status, _, errs := kvconnd("config", "schema", "replay"); status != 2 || !strings.Contains(errs, "serve") {
		t.Errorf("status %d, %s", status, errs)
	}
}
