package campaign

import (
	"os"
	"strconv"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// SeedVariable is the environment variable with the seed of a campaign; docs/reliability.md lists
// all of them.
const SeedVariable = seed.Variable

// Number is the number in an environment variable, other if it is not set. One that is no number
// ends the test.
func Number(t testing.TB, variable string, other int64) int64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return other
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// Seed is the seed of a run, which is logged; see [seed.Of].
func Seed(t testing.TB) uint64 {
	t.Helper()
	return seed.Of(t)
}
