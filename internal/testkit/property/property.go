// Package property checks properties with generated input that is the same on each run, unless
// the environment asks for another seed: a commit is judged by itself.
package property

import (
	"flag"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// flagSeed is the flag of package rapid with the seed; 0 stands for a new one on each run.
const flagSeed = "rapid.seed"

// rapid reads its flags in each check, so they are set once, before the first.
var setSeed sync.Once

// Check is [rapid.Check] with the seed of [seed.Of]. The flag -rapid.seed goes first.
func Check(t *testing.T, prop func(*rapid.T)) {
	t.Helper()
	setSeed.Do(func() {
		f := flag.Lookup(flagSeed)
		if f.Value.String() != "0" {
			return
		}
		if err := f.Value.Set(strconv.FormatUint(seed.Of(t), 10)); err != nil {
			t.Fatalf("flag -%s: %v", flagSeed, err)
		}
	})
	rapid.Check(t, prop)
}
