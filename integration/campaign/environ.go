package campaign

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// SeedVariable is the environment variable with the seed of a campaign; docs/reliability.md lists
// all of them.
const SeedVariable = "KVCONN_SEED"

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

// Seeds: a commit is judged by the same cases each time, unless others are asked for.
const (
	plainSeed = 1
	freshSeed = "fresh"
)

// Seed is the seed of a run, which is logged: that of [SeedVariable], or one that no run had
// before where that says "fresh".
func Seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano() & (1<<40 - 1))
	if os.Getenv(SeedVariable) != freshSeed {
		s = uint64(Number(t, SeedVariable, plainSeed))
	}
	t.Logf("%s=%d", SeedVariable, s)
	return s
}
