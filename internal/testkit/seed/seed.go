// Package seed gives random tests their seed: the same one on each run, unless the environment
// asks for another, and logged, so that a failure can be repeated.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Variable is the environment variable with the seed: a number, or "fresh" for one that no run
// had before.
const Variable = "KVCONN_SEED"

const (
	plain = 1
	fresh = "fresh"
)

// Of is the seed of a test, which is logged.
func Of(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano() & (1<<40 - 1))
	if os.Getenv(Variable) != fresh {
		s = uint64(Number(t, Variable, plain))
	}
	t.Logf("%s=%d", Variable, s)
	return s
}

// Random returns a source of random numbers with the seed of a test. Sources of one test differ
// by their number.
func Random(t testing.TB, number int) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), uint64(number)))
}

// Number is the number in an environment variable, other if it is not set. It ends the test if
// the variable is not a number.
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
