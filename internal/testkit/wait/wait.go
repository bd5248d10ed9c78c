// Package wait waits in tests for conditions that have to become true. Use testing/synctest instead
// where it works.
package wait

import (
	"testing"
	"time"
)

// Limit is a time that only broken code takes.
const Limit = time.Minute

// For waits until ok returns true. The test fails if it does not within [Limit].
func For(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
