package lint

import (
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
		"connector/server/server.go":         "time.Unix(", // a deadline in the past, whatever the clock says
		"store/disk/calibrate/keep.go":       ".UTC()",     // for people to read
		"store/residency/publish/session.go": ".Unix()",    // the time of publication, which the format of events has
		"store/object/format/id.go":          ".Unix()",    // the bucket's clock, which all nodes compare by
	}
	used := make(map[string]bool)
	rooms := regexp.MustCompile(`^(connector|leader|worker|store|gpu|internal/(daemon|engine))/`)
	for _, path := range goFiles(t) {
		if !rooms.MatchString(path) || strings.HasSuffix(path, "_test.go") {
			continue
		}
		for line := range strings.Lines(string(read(t, path))) {
			found := wall.FindString(line)
			switch {
			case found == "":
			case allowed[path] == found:
				used[path] = true
			default:
				t.Errorf("%s takes the wall clock out of a time: %s", path, strings.TrimSpace(line))
			}
		}
	}
	for path := range allowed {
		if !used[path] {
			t.Errorf("%s may take the wall clock out of a time, and does not", path)
		}
	}
}
