package opening

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/disk"
)

func TestAnOpeningThatStandsStillIsNotExtended(t *testing.T) {
	now := time.Now()
	o := New(slog.New(slog.DiscardHandler), now, nil)
	o.report(now, "a", 1, 10)
	if o.Stuck(now.Add(patience - 1)) {
		t.Error("stuck too early")
	}
	o.report(now.Add(patience), "a", 1, 10)
	if !o.Stuck(now.Add(patience)) {
		t.Error("nothing has moved, and it is not stuck")
	}
	if o.report(now.Add(patience), "a", 2, 10); o.Stuck(now.Add(patience)) {
		t.Error("it moves, and is stuck")
	}
}

func TestAnIndexThatIsRebuiltWhileItServesIsShown(t *testing.T) {
	var log testlog.Text
	now := time.Now()
	o := New(slog.New(slog.NewTextHandler(&log, nil)), now, nil)
	st := disk.Stats{Rebuild: disk.RebuildState{Running: true, Slots: 100, SlotsDone: 40}}
	o.Observe(now, &st)
	if s := o.Status(now.Add(time.Second)); s == nil || s.Done != 40 || s.Total != 100 || s.ForS != 1 {
		t.Errorf("%+v", s)
	}
	st.Rebuild.Running = false
	o.Observe(now, &st)
	if s := o.Status(now); s != nil || strings.Count(log.String(), "the index is complete") != 1 {
		t.Errorf("it is complete, and still %+v:\n%s", s, &log)
	}
}
