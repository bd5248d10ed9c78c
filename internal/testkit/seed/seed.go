// Package seed gives random tests their seed, so that a run that fails can be repeated.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Variable is the environment variable with the seed of random tests. "fresh" stands for one that no run had
// before. Without it the seed is 1: a commit is judged by the same cases each time.
const Variable = "KVCONN_SEED"

// Of returns the seed of a test, and logs it.
func Of(t testing.TB) uint64 {
	t.Helper()
	s := uint64(1)
	switch text := os.Getenv(Variable); text {
	case "":
	case "fresh":
		s = uint64(time.Now().UnixNano() & (1<<40 - 1))
	default:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
		s = n
	}
	t.Logf("%s=%d", Variable, s)
	return s
}

// Random returns a source of random numbers with the seed of a test. Sources of one test differ by their number.
func Random(t testing.TB, number int) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), uint64(number)))
}
