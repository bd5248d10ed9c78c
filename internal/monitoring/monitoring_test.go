package monitoring

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/router/service"
)

func TestFilesAreUpToDate(t *testing.T) {
	root := docs.Root(t)
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not up to date (%v): run go generate ./internal/monitoring", path, err)
		}
	}
}

func TestEveryMetricIsInAGroup(t *testing.T) {
	for _, side := range []struct {
		groups []Group
		all    []counters.Metric
	}{{Daemon(), daemon.Metrics()}, {Router(), service.Metrics()}} {
		names := make(map[string]bool)
		for _, m := range side.all {
			names[m.Name] = true
			if GroupOf(side.groups, m.Name) < 0 {
				t.Errorf("%s is in no group", m.Name)
			}
			if len(m.Help) < 10 || strings.ContainsAny(m.Help, "|\n") {
				t.Errorf("%s: help %q", m.Name, m.Help)
			}
		}
		for _, g := range side.groups {
			for _, name := range g.Names {
				if !names[name] {
					t.Errorf("%s: there is no %s", g.Title, name)
				}
			}
			for _, prefix := range g.Prefixes {
				if !slices.ContainsFunc(side.all, func(m counters.Metric) bool { return strings.HasPrefix(m.Name, prefix) }) {
					t.Errorf("%s: no metric begins with %s", g.Title, prefix)
				}
			}
		}
	}
}

// expressions are those of panels and alerts, by what has them.
func expressions() map[string]string {
	out := make(map[string]string)
	for _, g := range append(Daemon(), Router()...) {
		for _, p := range g.Panels {
			for _, q := range p.Queries {
				out[g.Title+"/"+p.Title+"/"+q.Legend] = q.Expr
			}
		}
	}
	for _, a := range Alerts() {
		out[a.Name] = a.Expr
	}
	return out
}

// Dashboards elsewhere have died of metrics that were given another name.
func TestExpressionsNameWhatThereIs(t *testing.T) {
	kinds, labels := make(map[string]string), make(map[string][]string)
	for _, m := range append(daemon.Metrics(), service.Metrics()...) {
		kinds[m.Name], labels[m.Name] = m.Kind, m.Labels
	}
	for where, expr := range expressions() {
		found := regexp.MustCompile(`kvconn_[a-z_]+`).FindAllString(expr, -1)
		if len(found) == 0 && !strings.HasPrefix(expr, "up{") {
			t.Errorf("%s: %s names no metric", where, expr)
		}
		have := []string{"le", "instance", "job"}
		for _, name := range found {
			base, bucket := strings.CutSuffix(name, "_bucket")
			switch kind := kinds[base]; {
			case kind == "", bucket != (kind == "histogram"):
				t.Errorf("%s: there is no %s", where, name)
			case (kind != "gauge") != regexp.MustCompile(`(rate|increase)\(`+name+`\b`).MatchString(expr) && !strings.HasPrefix(expr, "max by (gpu)"):
				t.Errorf("%s: rate belongs to counters alone: %s", where, expr)
			}
			have = append(have, labels[base]...)
		}
		for _, by := range regexp.MustCompile(`by \(([a-z, ]+)\)`).FindAllStringSubmatch(expr, -1) {
			for _, l := range strings.Split(by[1], ", ") {
				if !slices.Contains(have, l) {
					t.Errorf("%s: no metric of it has the label %s: %s", where, l, expr)
				}
			}
		}
	}
}

func TestAlertsAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, a := range Alerts() {
		if seen[a.Name] || a.Summary == "" || a.Meaning == "" || len(a.Do) == 0 || a.For == "" || !slices.Contains([]string{critical, warning, info}, a.Severity) {
			t.Errorf("%+v", a)
		}
		seen[a.Name] = true
	}
	text := string(runbook(Alerts()))
	for name := range seen {
		if !strings.Contains(text, "\n## "+name+"\n") {
			t.Errorf("the runbook has no %s", name)
		}
	}
}

func TestPanelsDoNotOverlapAndHaveIDsOfTheirOwn(t *testing.T) {
	for _, groups := range [][]Group{Daemon(), Router()} {
		b, err := dashboardOf("u", "t", "kvconn_build_info", groups)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Panels []struct {
				ID      int
				GridPos grid
				Title   string
			}
		}
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		ids, cells := make(map[int]bool), make(map[[2]int]string)
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s has the id of another panel", p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, taken := cells[[2]int{x, y}]; taken || x >= gridWidth {
						t.Errorf("%s lies on %s", p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

func TestExpressionsInDashboards(t *testing.T) {
	got := InDashboard(`sum by (tier) (rate(kvconn_a_total{tier="host"}[5m])) / kvconn_b`)
	if want := `sum by (tier) (rate(kvconn_a_total{instance=~"$instance", tier="host"}[$__rate_interval])) / kvconn_b{instance=~"$instance"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
