package segment

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// What ADR 3 says of how room is shared and faults are met.
func TestFiguresOfRoomAndFaults(t *testing.T) {
	for _, c := range []struct {
		is, want int64
		says     string
	}{
		{headroomPart, 16, "a sixteenth of a class"},
		{headroomBytes, 512 << 20, "at most 512 MiB"},
		{minFreePart, 20, "the larger of 5% and"},
		{minFreeBytes, 10 << 30, "and 10 GiB, at most a quarter"},
		{minFreeMost, 4, "at most a quarter"},
		{marginPart, 16, "until there is a sixteenth more"},
		{marginBytes, 1 << 30, "a sixteenth more (at most 1 GiB)"},
		{int64(measureInterval), int64(time.Second), "`statfs` is asked before a segment is made, and every second"},
		{unmeasuredTries, 30, "cannot be measured for 30 s"},
		{measureSmallEvery, 60, "It is tried again every minute"},
		{int64(pinPatience), int64(100 * time.Millisecond), "gets its slots back after 100 ms and another one goes"},
		{int64(suspectPause), int64(time.Second), "A slot whose write fails rests for a second"},
		{badSlots, 8, "a segment with eight such slots"},
		{badPart, 8, "or an eighth of its own"},
		{longStreak, 16, "Sixteen failures in a row"},
		{int64(probeInterval), int64(250 * time.Millisecond), "one write in 250 ms is tried"},
	} {
		if c.is != c.want {
			t.Errorf("%d, and the document says %q", c.is, c.says)
		}
		docs.Says(t, "adr/0003-store.md", c.says)
	}
}
