package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A clock that jumps must change nothing. Times of time.Now carry a monotonic reading, by
// which they are compared and subtracted, as long as nobody takes the wall clock out of
// them: what leases, deadlines, rates and health are made of never does.
func TestNothingReadsTheWallClock(t *testing.T) {
	wall := regexp.MustCompile(`\.Unix(Nano|Milli|Micro)?\(\)|\.Round\(0\)|time\.(Unix|UnixMilli|Date|Parse)\(|\.UTC\(\)|\.Local\(\)|\.In\(|CLOCK_REALTIME`)
	allowed := map[string]string{
		filepath.Join("connector", "server", "server.go"):          "time.Unix(", // a deadline in the past, whatever the clock says
		filepath.Join("store", "disk", "calibrate.go"):             ".UTC()",     // for people to read
		filepath.Join("store", "residency", "publish", "batch.go"): ".Unix()",    // the time of publication, which the format of events has
	}
	for _, path := range goFiles(t) {
		rel, err := filepath.Rel(root(t), path)
		if err != nil {
			t.Fatal(err)
		}
		switch room := part(module + "/" + filepath.ToSlash(filepath.Dir(rel))); room {
		case "connector", "leader", "worker", "store", "internal/daemon", "gpu", "internal/engine":
		default:
			continue
		}
		if strings.HasSuffix(rel, "_test.go") {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if found := wall.FindString(line); found != "" && allowed[rel] != found {
				t.Errorf("%s takes the wall clock out of a time: %s", rel, strings.TrimSpace(line))
			}
		}
	}
}
