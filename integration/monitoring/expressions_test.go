package monitoring

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	kvconn "github.com/kvconn/kvconn/internal/monitoring"
)

const root = "../.."

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// chosen replaces the variables of a dashboard, as Grafana does.
func chosen(expr string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(expr)
}

// target is an expression of a dashboard's file.
type target struct{ panel, expr string }

func targets(t *testing.T, path string) (list []target) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, path), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			list = append(list, target{p.Title, chosen(q.Expr)})
		}
	}
	if len(list) < 10 {
		t.Fatalf("%s has only %d expressions", path, len(list))
	}
	return list
}

func TestEveryExpressionOfDashboardsParses(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	for _, path := range []string{kvconn.DaemonDashboard, kvconn.RouterDashboard} {
		for _, q := range targets(t, path) {
			if _, err := p.ParseExpr(q.expr); err != nil {
				t.Errorf("%s, %s: %v in %s", path, q.panel, err, q.expr)
			}
		}
	}
}

// What docs/metrics.md has is for people to paste.
func TestEveryExpressionOfPanelsParses(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	for _, g := range append(kvconn.Daemon(), kvconn.Router()...) {
		for _, panel := range g.Panels {
			for _, q := range panel.Queries {
				if _, err := p.ParseExpr(q.Expr); err != nil {
					t.Errorf("%s: %v in %s", panel.Title, err, q.Expr)
				}
			}
		}
	}
}

// Prometheus takes the file of alerts: expressions, durations and the templates of annotations.
func TestPrometheusTakesTheAlerts(t *testing.T) {
	groups, errs := rulefmt.Parse(read(t, kvconn.AlertRules), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	n := 0
	if groups != nil {
		for _, g := range groups.Groups {
			n += len(g.Rules)
		}
	}
	if want := len(kvconn.Alerts()); n != want {
		t.Errorf("%d alerts, want %d", n, want)
	}
}
