package recovery

import (
	"testing"
	"time"
)

func TestPausesOfHealingAreBounded(t *testing.T) {
	p := DefaultPauses()
	pause, total := time.Duration(0), time.Duration(0)
	for failures := range 1000 {
		pause = p.after(pause, failures >= healMany)
		total += pause
		if pause < p.First || pause > p.Rare || failures < healMany && pause > p.Last {
			t.Fatalf("%v after %d failures", pause, failures)
		}
	}
	if rare := (1000 - healMany) * p.Rare; total < rare {
		t.Errorf("1000 tries in %v, want %v at least", total, rare)
	}
}
