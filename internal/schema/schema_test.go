package schema

import (
	"encoding"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/manual"
)

// A schema has exactly the keys that the manual explains, each with a description.
func TestSchemasHaveAllSettings(t *testing.T) {
	for _, c := range []struct {
		schema *Schema
		groups []manual.Group
	}{{Serve(), manual.Serve()}, {Router(), manual.Router()}} {
		var want []string
		for i := range c.groups {
			for j := range c.groups[i].Settings {
				want = append(want, c.groups[i].Settings[j].Key)
			}
		}
		for flag, list := range map[string]string{"rank": "ranks", "discover": "discovery"} {
			if i := slices.Index(want, flag); i >= 0 {
				want[i] = list
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(c.schema.Properties)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.schema.Title, got, want)
		}
		for key, p := range c.schema.Properties {
			if p.Description == "" {
				t.Errorf("%s has no description", key)
			}
		}
		if c.schema.Closed == nil || *c.schema.Closed {
			t.Errorf("%s: misspelt keys are not refused", c.schema.Title)
		}
	}
}

// Texts are right by a schema's pattern if the daemon takes them.
func TestPatternsTakeWhatTheDaemonTakes(t *testing.T) {
	texts := []string{
		"", " ", "0", "500GB", "64MiB", "500G", "64Mi", "1.5 TB", " 10gib ", "7", "7b", "80%", "5 %", ".5%", "99.9%", "100%", "-1", "-1GB", "1 EB", "GB", "%", "1%%", "10 GBs",
		"1000", "1000,65534", "1000, 65534 ", "a", "1,", ",1", "0660", "0o660", "660", "8", "09", "rw", "10s", "1h30m", "1.5h", "10", "10 s", "s", "500ms", "1d",
	}
	for key, parse := range map[string]func(string) error{
		"host_bytes":   text[config.Bytes],
		"min_free":     text[config.Space],
		"max_bytes":    text[config.Cap],
		"allow_uids":   text[config.IDs],
		"socket_mode":  text[config.Mode],
		"load_timeout": func(s string) error { _, err := time.ParseDuration(s); return err },
	} {
		pattern := regexp.MustCompile(Serve().Properties[key].Pattern)
		for _, s := range texts {
			if err := parse(s); pattern.MatchString(s) != (err == nil) {
				t.Errorf("%s %q: the pattern matches: %v; the daemon: %v", key, s, pattern.MatchString(s), err)
			}
		}
	}
}

func text[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](s string) error {
	return P(new(T)).UnmarshalText([]byte(s))
}

func TestSecretsAndDefaultsAreMarked(t *testing.T) {
	s := Serve()
	if !s.Properties["http_token"].WriteOnly || s.Properties["dir"].WriteOnly {
		t.Error("secrets are not told from others")
	}
	for key, want := range map[string]any{"load_timeout": "10s", "prompts_only": false, "writers": 0.0, "log_level": "info", "host_bytes": nil, "dir": nil} {
		if got := s.Properties[key].Default; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: default %v, want %v", key, got, want)
		}
	}
	if got := s.Properties["object_style"].Enum; !slices.Equal(got, []string{"auto", "path", "virtual"}) {
		t.Errorf("%q", got)
	}
}

// What the router reads of a rank is what its schema has.
func TestRanksAreClosedObjects(t *testing.T) {
	rank := Router().Properties["ranks"].Items
	for _, key := range []string{"id", "model", "endpoint", "events", "speeds", "block_size", "draining"} {
		if rank.Properties[key] == nil {
			t.Errorf("ranks have no %s", key)
		}
	}
	if events := rank.Properties["events"]; *events.Closed || events.Properties["replay_endpoint"] == nil {
		t.Errorf("%+v", events)
	}
	source := Router().Properties["discovery"].Items
	if source.Properties["rank"].Properties["model"] == nil || source.Properties["interval"].Pattern == "" {
		t.Errorf("%+v", source)
	}
	if b, err := json.Marshal(Router()); err != nil || len(b) > 1<<18 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// The packages' file has only keys that the schema has.
func TestThePackagesFileFits(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "integration", "release", "files", "kvconnd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:# )?([a-z_]+): `).FindAllSubmatch(b, -1) {
		if Serve().Properties[string(m[1])] == nil {
			t.Errorf("there is no setting %s", m[1])
		}
	}
}
