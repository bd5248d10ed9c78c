package prefix

import (
	"os"
	"testing"
)

// randomSteps is how many operations a random test does: a quarter of the total that the
// four of them do.
func randomSteps() int {
	switch {
	case os.Getenv("KVCONN_TEST_LONG") != "":
		return 500_000
	case testing.Short() || raceEnabled:
		return 4_000
	}
	return 50_000
}

func TestRandomOperationsMatchASetPerBlock(t *testing.T) {
	for _, c := range []struct {
		name        string
		blocks      int
		odd         bool
		predictions bool
	}{
		{"long chains", 2500, false, false},
		{"few blocks", 120, false, true},
		{"engines that name blocks differently", 700, true, false},
		{"all", 1200, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps := randomSteps()
			m := newModel(t, c.blocks, c.blocks, c.odd, Options{})
			for i := range steps {
				m.step(c.predictions)
				if i%(steps/10) == 0 {
					m.x.check(t)
				}
			}
			for _, h := range m.holders {
				m.clear(h)
			}
			m.x.check(t)
			if s := m.x.Stats(); s.Blocks != 0 || s.Runs != 0 || s.Held != 0 {
				t.Errorf("cleared by all, still there: %+v", s)
			} else {
				t.Logf("%+v", s)
			}
		})
	}
}
