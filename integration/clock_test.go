package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A clock that jumps moves no lease, deadline or measurement: in Go a time keeps its
// monotonic reading, and differences are taken of that, unless it is stripped or turned
// into a number. Nothing on the data path does so.
func TestNothingOnTheDataPathReadsTheWallClock(t *testing.T) {
	wall := regexp.MustCompile(`\.Unix(Nano|Micro|Milli)?\(\)|\.Round\(0\)|ClockGettime\(unix\.CLOCK_REALTIME`)
	files := 0
	for _, part := range []string{"connector", "leader", "worker", "store", "daemon"} {
		err := filepath.WalkDir(filepath.Join("..", part), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if found := wall.Find(b); found != nil {
				t.Errorf("%s reads the wall clock: %s", path, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files == 0 {
		t.Error("no source was found")
	}
}
