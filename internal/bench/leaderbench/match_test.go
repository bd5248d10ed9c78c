package leaderbench

import (
	"testing"
)

func TestMatchBenchRuns(t *testing.T) {
	res, err := Match(t.Context(), Options{Dir: t.TempDir(), Records: 300, Tokens: 1024, Rounds: 5})
	if err != nil {
		t.Fatal(err)
	}
	if res.MatchSeconds <= 0 || res.MatchMinSeconds > res.MatchSeconds || res.Records != 300 || res.Tokens != 1024 {
		t.Errorf("result %+v", res)
	}
	for _, o := range []Options{{Records: 1}, {Tokens: 1}, {Rounds: -1}} {
		if _, err := Match(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
