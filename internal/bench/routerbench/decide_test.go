package routerbench

import (
	"context"
	"errors"
	"testing"
)

func TestDecideBenchRuns(t *testing.T) {
	r, err := Decide(t.Context(), Options{Ranks: 8, Background: 5000, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.DecideFromTokensSeconds <= 0 || r.DecideHalfHeldSeconds <= 0 || r.DecideNewSeconds <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestDecideEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Decide(ctx, Options{Ranks: 1, Background: 1000, Rounds: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
