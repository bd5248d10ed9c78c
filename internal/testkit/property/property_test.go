package property

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestEachRunChecksTheSame(t *testing.T) {
	t.Setenv(seed.Variable, "42")
	drawn := func() (values []int) {
		Check(t, func(rt *rapid.T) { values = append(values, rapid.Int().Draw(rt, "value")) })
		return values
	}
	first, again := drawn(), drawn()
	if len(first) == 0 || len(first) != len(again) {
		t.Fatalf("%d values, then %d", len(first), len(again))
	}
	for i := range first {
		if first[i] != again[i] {
			t.Fatalf("value %d is %d, then %d", i, first[i], again[i])
		}
	}
	if got := flag.Lookup(flagSeed).Value.String(); got != "42" {
		t.Errorf("the seed is %s", got)
	}
}
