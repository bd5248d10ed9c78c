package campaign

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// Whatever happens to one file while the store is down, it starts, gives no wrong byte, and
// has all but a few of the records whose own bytes are intact.
func TestCampaignDamage(t *testing.T) {
	began := time.Now()
	dir := workDir(t)
	o, err := NewOriginal(filepath.Join(dir, "original"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the store has %d records after a clean stop and %d after kill -9; made in %v",
		o.Records(Stopped), o.Records(Killed), time.Since(began).Round(time.Millisecond))
	base, cells := seed.Of(t), o.Cells()
	if only := os.Getenv(onlyVariable); only != "" {
		if cells = CellsLike(cells, only); len(cells) == 0 {
			t.Fatalf("no trial is called %q", only)
		}
	}
	shuffled := rand.New(rand.NewPCG(base, 1)).Perm(len(cells))
	most := seed.Number(t, trialsVariable, 1<<62)
	deadline := time.Now().Add(campaignTime(t))
	var table Table
	var next atomic.Int64
	var wait sync.WaitGroup
	for range workers() {
		wait.Go(func() {
			for n := next.Add(1) - 1; n < most && time.Now().Before(deadline); n = next.Add(1) - 1 {
				trial := Trial{Cell: cells[shuffled[n%int64(len(cells))]], Seed: base + uint64(n)}
				out, err := trial.Run(o, filepath.Join(dir, "trial-"+time.Now().Format("150405.000000000")))
				if err != nil {
					t.Errorf("%v: %v", trial, err)
					return
				}
				table.Add(&out)
			}
		})
	}
	wait.Wait()
	report(t, &table, base, time.Since(began))
}

// report logs the table and what failed, and writes both where the environment says.
func report(t *testing.T, table *Table, base uint64, took time.Duration) {
	t.Helper()
	var text strings.Builder
	if _, err := table.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	lines := known(t)
	var fresh, old int
	var fails strings.Builder
	for _, o := range table.Failed() {
		if lines.Has(o.Trial.String()) {
			old++
		} else if fresh++; fresh <= 20 {
			t.Errorf("%v: %s: %s", o.Trial, o.Damage, strings.Join(o.Failures, "; "))
		}
		fails.WriteString(o.Trial.String() + ": " + o.Damage + ": " + strings.Join(o.Failures, "; ") + "\n")
	}
	t.Logf("%d trials in %v, seed %d: %d failed, and %d as is known", table.Trials(), took.Round(time.Second), base, fresh, old)
	if path := os.Getenv(reportVariable); path != "" {
		all := text.String() + "\n" + fails.String()
		if err := os.WriteFile(path, []byte(all), 0o644); err != nil {
			t.Error(err)
		}
	} else if os.Getenv(trialsVariable) != "" {
		t.Log("\n" + text.String())
	}
}
