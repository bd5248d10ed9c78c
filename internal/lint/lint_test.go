// Package lint holds the checks on kvconn's own source that `go test` runs: imports, sizes,
// words, formatting and house rules.
package lint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The project speaks of itself alone: no path of a developer's machine is committed.
func TestNoMachinePaths(t *testing.T) {
	machine := regexp.MustCompile(`(^|[\s"'(=])/(work|root|home)/`)
	for _, path := range textFiles(t) {
		if m := machine.Find(read(t, path)); m != nil {
			t.Errorf("%s names a path of a machine: %q", path, m)
		}
	}
}

// A checkout is sources: what they build is ignored by Git, wherever it lands.
func TestNoProgramsAreCommitted(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a checkout of Git: %v", err)
	}
	for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		f, err := os.Open(filepath.Join(root(t), filepath.FromSlash(path)))
		if err != nil {
			continue // removed, and not yet committed
		}
		magic := make([]byte, 4)
		n, _ := f.Read(magic) // a short file is no program
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if string(magic[:n]) == "\x7fELF" {
			t.Errorf("%s is a program that was built: remove it, and add it to .gitignore", path)
		}
	}
}

// tool runs a checker over the module; a failure or anything on its standard output is a
// finding. Standard error also tells of modules being fetched on a new machine.
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: runs a checker over the whole module")
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = root(t)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.Len() > 0 {
		t.Errorf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &stdout, &stderr)
	}
}

func TestGofmt(t *testing.T) { tool(t, "gofmt", append([]string{"-l"}, goFiles(t)...)...) }

// Without a C compiler every package has files to build. That they build shows in .ci/run, which has the
// time to compile everything once more, as it has for vet and staticcheck.
func TestNeedsNoCgo(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	tool(t, "go", "list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", "./...")
}
