package target

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/locate"
)

// commands are one command of each kind.
type commands struct {
	Ask  struct{ Daemon }         `cmd:""`
	Show struct{ DaemonOrRouter } `cmd:""`
}

// parse gives the flags of one command line their values.
func parse(t *testing.T, out *bytes.Buffer, args ...string) (*commands, *kong.Context, *settings.Resolver) {
	t.Helper()
	c, resolver := new(commands), new(settings.Resolver)
	p, err := kong.New(c, kong.Resolvers(resolver), kong.Writers(out, out), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	command, err := p.Parse(args)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return c, command, resolver
}

// A daemon that listens on a free port is found by its directory, whatever its settings say. An address on the command line is meant.
func TestAnAddressWinsOverADirectoryOnTheCommandLineAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("http: file:1\ndir: /file\nhttp_token: f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		env  map[string]string
		want locate.Settings
	}{
		{},
		{args: []string{"--http", "flag:1"}, want: locate.Settings{HTTP: "flag:1"}},
		{args: []string{"--dir", "/flag", "--http-token", "t"}, want: locate.Settings{Dir: "/flag", Token: "t"}},
		{args: []string{"--http", "flag:1", "--dir", "/flag"}, want: locate.Settings{HTTP: "flag:1"}},
		{args: []string{"--config", file}, want: locate.Settings{HTTP: "file:1", Dir: "/file", Token: "f"}},
		{args: []string{"--config", file, "--http", "flag:1"}, want: locate.Settings{HTTP: "flag:1", Token: "f"}},
		{args: []string{"--config", file, "--dir", "/flag"}, want: locate.Settings{HTTP: "file:1", Dir: "/flag", Token: "f"}},
		{
			args: []string{"--dir", "/flag"}, env: map[string]string{"KVCONN_HTTP": "env:1", "KVCONN_HTTP_TOKEN": "e"},
			want: locate.Settings{HTTP: "env:1", Dir: "/flag", Token: "e"},
		},
		{
			args: []string{"--http", "flag:1"}, env: map[string]string{"KVCONN_DIR": "/env", "KVCONN_HTTP": "env:1"},
			want: locate.Settings{HTTP: "flag:1"},
		},
		{env: map[string]string{"KVCONN_DIR": "/env", "KVCONN_HTTP": "env:1"}, want: locate.Settings{HTTP: "env:1", Dir: "/env"}},
	} {
		for _, name := range []string{"KVCONN_CONFIG", "KVCONN_HTTP", "KVCONN_DIR", "KVCONN_HTTP_TOKEN"} {
			t.Setenv(name, tc.env[name]) // empty counts as not set
		}
		for _, name := range []string{"ask", "show"} {
			c, command, resolver := parse(t, new(bytes.Buffer), append([]string{name}, tc.args...)...)
			d := &c.Ask.Daemon
			if name == "show" {
				d = &c.Show.Daemon
			}
			if got := d.At(command, resolver); got != tc.want {
				t.Errorf("%s %q with %v: %+v, want %+v", name, tc.args, tc.env, got, tc.want)
			}
		}
	}
}

// Only commands that show routers say that they do.
func TestTheHelpNamesRoutersWhereTheyAreShown(t *testing.T) {
	for name, router := range map[string]bool{"ask": false, "show": true} {
		var out bytes.Buffer
		parse(t, &out, name, "--help")
		text := strings.Join(strings.Fields(out.String()), " ")
		if !strings.Contains(text, "URL of the daemon") || strings.Contains(text, "daemon, or of a router.") != router || strings.Contains(text, "$KVCONN_ROUTER_TOKEN") != router {
			t.Errorf("%s: %s", name, text)
		}
	}
}
