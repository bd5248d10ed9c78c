package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	metricsDoc  = "../../docs/metrics.md"
	metricsHead = "| metric | kind | meaning |\n|---|---|---|\n"
)

// metricsTable lists every metric of a scrape as the manual does.
func metricsTable(text string) string {
	var rows strings.Builder
	rows.WriteString(metricsHead)
	var name, help string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ = strings.Cut(rest, " ")
		}
		kind, ok := strings.CutPrefix(line, "# TYPE "+name+" ")
		if !ok {
			continue
		}
		label := ""
		if _, after, found := strings.Cut(text, "\n"+name+"{"); found {
			label, _, _ = strings.Cut(after, "=")
			label = "{" + label + "}"
		}
		fmt.Fprintf(&rows, "| `%s%s` | %s | %s |\n", name, label, kind, help)
	}
	return rows.String()
}

// docs/metrics.md lists every metric with its help. KVCONN_TEST_UPDATE=1 writes it again.
func TestEveryMetricIsDocumented(t *testing.T) {
	want := metricsTable(scrape(t, example()))
	b, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(b), metricsHead)
	doc := before + want
	if os.Getenv("KVCONN_TEST_UPDATE") != "" {
		if err := os.WriteFile(metricsDoc, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if string(b) != doc {
		t.Error("docs/metrics.md does not list the metrics as they are; KVCONN_TEST_UPDATE=1 writes it again")
	}
}
