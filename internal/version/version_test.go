package version

import (
	"encoding/json"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestNumberIsOneThatAllPackagesTake(t *testing.T) {
	// Python, Debian and RPM order other forms differently, or refuse them.
	if !regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`).MatchString(Number()) {
		t.Errorf("number.txt has %q, want MAJOR.MINOR.PATCH", Number())
	}
	if got := Server(); got != "kvconnd/"+Number() {
		t.Errorf("Server is %q", got)
	}
}

// The number of the next release is that of the newest entry in the list of changes.
func TestChangelogBeginsWithThisVersion(t *testing.T) {
	b, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^## ([\d.]+)`).FindSubmatch(b)
	if m == nil || string(m[1]) != Number() {
		t.Errorf("the list of changes begins with %q, number.txt has %s", m, Number())
	}
}

func TestBuildIsDescribed(t *testing.T) {
	b := Describe(true)
	if b.Version != Number() || !strings.HasPrefix(b.Go, "go") || !strings.HasPrefix(b.Platform, "linux/") || !b.GPU {
		t.Errorf("%+v", b)
	}
	b = Build{Version: "1.2.3", Go: "go1.0", Platform: "linux/arm64"}
	b.take([]debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	})
	if got, want := b.String(), "kvconnd/1.2.3 (linux/arm64, go1.0, commit 0123456789ab with changes, without GPU support)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	j, err := json.Marshal(b)
	want := `{"version":"1.2.3","commit":"0123456789abcdef","commit_time":"2026-01-02T03:04:05Z","modified":true,"go":"go1.0","platform":"linux/arm64","gpu":false}`
	if err != nil || string(j) != want {
		t.Errorf("%s, %v; want %s", j, err, want)
	}
	b.Commit = "abc" // no commit, but it is printed as it is
	if !strings.Contains(b.String(), "commit abc ") {
		t.Error(b.String())
	}
}
