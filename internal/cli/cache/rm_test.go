package cache

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// removing is a daemon that answers removals as answer says, and the digests that it was asked to remove.
func removing(t *testing.T, answer map[string]admin.Removal) (*client, *[]string) {
	t.Helper()
	asked := new([]string)
	return fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(someNamespaces())
			return
		}
		digest := path.Base(r.URL.Path)
		*asked = append(*asked, digest[:2])
		if a, ok := answer[digest[:2]]; ok {
			_ = json.NewEncoder(w).Encode(a)
			return
		}
		http.Error(w, "no namespace "+digest, http.StatusNotFound)
	}), asked
}

func TestRemoveAsksForWhatWasChosenAlone(t *testing.T) {
	removed := func(n, left int64) admin.Removal {
		return admin.Removal{Result: purge.Result{Removed: n, Left: left}, HostRemoved: 1}
	}
	answers := map[string]admin.Removal{"a1": removed(5, 0), "a2": removed(2, 0), "b1": {Result: purge.Result{Removed: 1}, Bucket: true}}
	for _, c := range []struct {
		name      string
		cmd       rmCmd
		asked     []string
		out, fail string
	}{
		{"without --yes", rmCmd{Model: "m"}, nil, "7 records of 7MiB in 2 namespaces", "nothing was removed"},
		{"dry", rmCmd{All: true, DryRun: true, Yes: true}, nil, "8 records", ""},
		{"model", rmCmd{Model: "m", Yes: true}, []string{"a1", "a2"}, "removed: 7 records from disk, 2 from host memory", ""},
		{"unknown model", rmCmd{Model: "q", Yes: true}, nil, "", "no model"},
		{"namespace", rmCmd{Namespace: "A1A1A1A1", Yes: true}, []string{"a1"}, "removed: 5 records", ""},
		{"short", rmCmd{Namespace: "a1", Yes: true}, nil, "", "at least 8"},
		{"unknown namespace", rmCmd{Namespace: "ffffffff", Yes: true}, nil, "", "no namespace"},
		{"all", rmCmd{All: true, Yes: true}, []string{"a1", "a2", "b1"}, "object tier was not touched", ""},
		{"gone meanwhile", rmCmd{Namespace: strings.Repeat("c1", 32), Yes: true}, []string{"c1"}, "removed: 0", ""},
		{"as JSON", rmCmd{Model: "m", Yes: true, JSON: true}, []string{"a1", "a2"}, `"removed": 5`, ""},
	} {
		daemon, asked := removing(t, answers)
		var out strings.Builder
		err := c.cmd.run(t.Context(), daemon, &terminal.Streams{Out: &out})
		if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fail)
		}
		if !slices.Equal(*asked, c.asked) || !strings.Contains(out.String(), c.out) {
			t.Errorf("%s: asked for %v, want %v; printed\n%s", c.name, *asked, c.asked, out.String())
		}
		if c.cmd.JSON && !json.Valid([]byte(out.String())) {
			t.Errorf("%s: no JSON: %s", c.name, out.String())
		}
	}
}

func TestWhatIsLeftFailsTheCommand(t *testing.T) {
	for want, r := range map[string]purge.Result{"2 records are left": {Removed: 3, Left: 2}, "does not know all": {Removed: 3, Incomplete: true}} {
		daemon, _ := removing(t, map[string]admin.Removal{"a1": {Result: r}})
		err := (&rmCmd{Namespace: "a1a1a1a1", Yes: true}).run(t.Context(), daemon, &terminal.Streams{Out: new(strings.Builder)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
