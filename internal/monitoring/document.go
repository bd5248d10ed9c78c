package monitoring

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/router/service"
)

// Paths of what is made, from the repository's root.
const (
	DaemonDashboard = "deploy/monitoring/kvconn-daemon.json"
	RouterDashboard = "deploy/monitoring/kvconn-router.json"
	AlertRules      = "deploy/monitoring/alerts.yaml"
	RunbookDoc      = "docs/runbook.md"
	MetricsDoc      = "docs/metrics.md"
)

// chartFolder has the copies that the Helm chart installs.
const chartFolder = "deploy/helm/kvconn/monitoring/"

// tablesBegin begins the part of docs/metrics.md that is made.
const tablesBegin = "<!-- From here on made by go generate ./internal/monitoring. -->\n"

// Files returns the content of every file that is made, by its path from the repository's root, which is root here: a
// part of docs/metrics.md is written by hand.
func Files(root string) (map[string][]byte, error) {
	perNode, err := dashboardOf("kvconn-daemon", "kvconn: daemons", "kvconn_build_info", Daemon())
	if err != nil {
		return nil, err
	}
	routers, err := dashboardOf("kvconn-router", "kvconn: routers", "kvconn_router_build_info", Router())
	if err != nil {
		return nil, err
	}
	alerts, err := rules(Alerts())
	if err != nil {
		return nil, err
	}
	doc, err := os.ReadFile(filepath.Join(root, MetricsDoc))
	if err != nil {
		return nil, fmt.Errorf("monitoring: %w", err)
	}
	byHand, _, found := bytes.Cut(doc, []byte(tablesBegin))
	if !found {
		return nil, errors.New("monitoring: docs/metrics.md does not say where the tables begin")
	}
	files := map[string][]byte{DaemonDashboard: perNode, RouterDashboard: routers, AlertRules: alerts}
	for path, b := range maps.Clone(files) { // a chart holds all that it installs
		files[chartFolder+filepath.Base(path)] = b
	}
	files[RunbookDoc], files[MetricsDoc] = runbook(Alerts()), append(bytes.Clone(byHand), tables()...)
	return files, nil
}

// Write writes the files that are made below the repository's root.
func Write(root string) error {
	files, err := Files(root)
	if err != nil {
		return err
	}
	for path, b := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("monitoring: %w", err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return fmt.Errorf("monitoring: %w", err)
		}
	}
	return nil
}

// tables are the made part of docs/metrics.md.
func tables() []byte {
	var out bytes.Buffer
	out.WriteString(tablesBegin + "\n## Of the daemon\n")
	tablesOf(&out, Daemon(), daemon.Metrics(), "")
	out.WriteString("\n## Of the router\n")
	tablesOf(&out, Router(), service.Metrics(), " of the router")
	return out.Bytes()
}

func tablesOf(out *bytes.Buffer, groups []Group, all []counters.Metric, suffix string) {
	for i, metrics := range of(groups, all) {
		g := &groups[i]
		fmt.Fprintf(out, "\n### %s%s\n\n%s\n\n| metric | kind | unit | meaning |\n|---|---|---|---|\n", g.Title, suffix, g.Question)
		for _, m := range metrics {
			labels := ""
			if len(m.Labels) > 0 {
				labels = "{" + strings.Join(m.Labels, ",") + "}"
			}
			fmt.Fprintf(out, "| `%s%s` | %s | %s | %s |\n", m.Name, labels, m.Kind, unitOf(&m), m.Help)
		}
		if len(g.Panels) > 0 {
			out.WriteString("\n")
		}
		for j := range g.Panels {
			p := &g.Panels[j]
			if q := p.Queries[0].Expr; strings.Contains(q, "(") {
				fmt.Fprintf(out, "- %s: `%s`\n", p.Title, q)
			}
		}
	}
}

// unitOf is what a metric counts, by its name.
func unitOf(m *counters.Metric) string {
	name := strings.TrimSuffix(m.Name, "_total")
	for _, u := range [...][2]string{
		{"_bytes_per_second", "bytes/s"}, {"_tokens_per_second", "tokens/s"}, {"_dollars_per_day", "US dollars/day"}, {"_seconds", "seconds"},
		{"_bytes", "bytes"}, {"_tokens", "tokens"}, {"_blocks", "blocks"}, {"_records", "records"}, {"_ratio", "0 to 1"},
	} {
		if strings.HasSuffix(name, u[0]) {
			return u[1]
		}
	}
	if m.Kind == "gauge" && strings.HasPrefix(m.Help, "1 ") {
		return "0 or 1"
	}
	return "number"
}
