package descriptors

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/testlog"
)

func TestDescriptorsAreKeptForEnginesAndTheStore(t *testing.T) {
	for limit, want := range map[int64]int{20: 4, 300: 37, 1 << 20: maxHTTP} {
		if got := HTTPConnections(limit); got != want {
			t.Errorf("%d HTTP connections of %d descriptors, want %d", got, limit, want)
		}
	}
	var log testlog.Text
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if Check(logger, 65536, 4096); log.String() != "" {
		t.Errorf("enough, and still %s", &log)
	}
	if Check(logger, 1024, 32); !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "LimitNOFILE") {
		t.Errorf("nothing is said of a small limit: %s", &log)
	}
}
