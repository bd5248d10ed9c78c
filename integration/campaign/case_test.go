package campaign

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestCasesRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		c := RandomCase(seed)
		again, err := ParseCase(c.String())
		if err != nil || again.String() != c.String() || !slices.Equal(again.Script, c.Script) {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, &c, &again)
		}
	}
	for _, text := range []string{"save", "save narrow x 1", "paint", "fault (on)", "faults maybe", "wait 5h", "damage burn * 1"} {
		if c, err := ParseCase(text); err == nil {
			t.Errorf("%q is taken for %q", text, &c)
		}
	}
}

func TestReduceFindsWhatMatters(t *testing.T) {
	all := make([]int, 100)
	for i := range all {
		all[i] = i
	}
	got := Reduce(all, 1000, func(part []int) bool {
		return slices.Contains(part, 17) && slices.Contains(part, 71)
	})
	if !slices.Equal(got, []int{17, 71}) {
		t.Errorf("%v", got)
	}
}

// Each case of testdata is a failure that was once found, or proven by a review.
func TestCampaignKeptCases(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.case"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	lines, dir := known(t), workDir(t)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".case")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := ReadCase(path)
			if err != nil {
				t.Fatal(err)
			}
			out := c.Run(filepath.Join(dir, name))
			switch expected := lines.Has(name); {
			case len(out.Failures) > 0 && expected:
				t.Skipf("known, not repaired yet: %s", strings.Join(out.Failures, "\n"))
			case len(out.Failures) > 0:
				t.Errorf("%s\nwarnings:\n%s", strings.Join(out.Failures, "\n"), out.Warnings)
			case expected:
				t.Logf("passes now: take it out of testdata/known.txt")
			}
		})
	}
}

// failing is a case that failed, with the class of its failure.
type failing struct {
	name string
	c    Case
	out  CaseOutcome
}

// campaign runs cases on all processors until next has no more or time is up, and returns
// those that failed, at most one of a class.
func campaign(t *testing.T, limit time.Duration, next func(n int64) (string, Case, bool)) []failing {
	t.Helper()
	dir, deadline := workDir(t), time.Now().Add(limit)
	var n, done, injected atomic.Int64
	var mu sync.Mutex
	var found []failing
	count := make(map[string]int)
	var wait sync.WaitGroup
	for range workers() {
		wait.Go(func() {
			for time.Now().Before(deadline) {
				k := n.Add(1) - 1
				name, c, more := next(k)
				if !more {
					return
				}
				out := c.Run(filepath.Join(dir, fmt.Sprint("case-", k)))
				done.Add(1)
				injected.Add(out.Injected)
				if class := out.Class(); class != "" {
					mu.Lock()
					if count[class]++; count[class] == 1 {
						found = append(found, failing{name, c, out})
					}
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	t.Logf("%d cases with %d faults; failed: %v", done.Load(), injected.Load(), count)
	return found
}

// reductionTime bounds what is spent on making a failing case smaller.
const reductionTime = 2 * time.Minute

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// judge reports what failed, each made smaller and written to a file.
func judge(t *testing.T, lines Known, campaign string, found []failing) {
	t.Helper()
	dir := workDir(t)
	for _, f := range found {
		class := f.out.Class()
		if lines.Has(campaign + ": " + class) {
			t.Logf("known: %s: %s", f.name, f.out.Failures[0])
			continue
		}
		if len(f.c.Steps) == 0 {
			continue
		}
		deadline := time.Now().Add(reductionTime)
		again := 0
		small := f.c.Reduce(200, func(c *Case) bool {
			// What depends on time may need some tries to fail again.
			for range 2 {
				again++
				if time.Now().After(deadline) {
					return false
				}
				if out := c.Run(filepath.Join(dir, fmt.Sprint("again-", again))); out.Class() == class {
					return true
				}
			}
			return false
		})
		path := filepath.Join(os.TempDir(), "kvconn-"+strings.Trim(notInNames.ReplaceAllString(f.name, "-"), "-")+".case")
		text := fmt.Sprintf("# %s\n# %s\n%s", f.name, strings.ReplaceAll(f.out.Failures[0], "\n", "\n# "), &small)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		t.Errorf("%s: %s\nreduced to %s; keep it in integration/campaign/testdata:\n%s", f.name, strings.Join(f.out.Failures, "\n"), path, text)
	}
}

// Random steps under random faults.
func TestCampaignRandom(t *testing.T) {
	base, most := seed.Of(t), seed.Number(t, trialsVariable, 1<<62)
	found := campaign(t, campaignTime(t), func(n int64) (string, Case, bool) {
		return fmt.Sprint("random ", base+uint64(n)), RandomCase(base + uint64(n)), n < most
	})
	judge(t, known(t), "random", found)
}

// Each operation fails in turn and for a while, with each error, or takes a second.
func TestCampaignTurns(t *testing.T) {
	base, turns, most := seed.Of(t), Turns(), seed.Number(t, trialsVariable, 1<<62)
	g := rand.New(rand.NewPCG(base, 1))
	var mu sync.Mutex
	all := os.Getenv(onlyVariable) == "all"
	// In full, one turn after the other; else some at random.
	at, n := 0, int64(0)
	stride := seed.Number(t, "KVCONN_CAMPAIGN_STRIDE", 1)
	limit := campaignTime(t)
	if all && os.Getenv(timeVariable) == "" {
		limit = noLimit
	}
	found := campaign(t, limit, func(k int64) (string, Case, bool) {
		mu.Lock()
		defer mu.Unlock()
		if !all {
			turn, at := turns[g.IntN(len(turns))], int64(g.IntN(1+g.IntN(turnLength)))
			return turnName(turn, at), turn.Case(at), k < most
		}
		if n >= turnLength {
			at, n = at+1, 0
		}
		if at == len(turns) {
			return "", Case{}, false
		}
		turn, after := turns[at], n
		n += stride
		return turnName(turn, after), turn.Case(after), true
	})
	judge(t, known(t), "turns", found)
}

// turnLength is how many operations of a kind are failed in turn at most: of most kinds there
// are fewer in the steps, and the rest of the turn is a run without a fault.
const turnLength = 60

func turnName(turn Turn, n int64) string {
	return fmt.Sprintf("turn %v %s %v for %d after %d", turn.Kind, turn.Pattern, turn.Effect, turn.For, n)
}
