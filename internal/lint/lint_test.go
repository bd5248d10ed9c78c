// Package lint holds the checks on kvconn's own source that `go test` runs: layering,
// formatting, vet, staticcheck and house rules.
package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvconn/kvconn"

// layers lists what each part may import of the others, beside itself and its own
// sub-packages. docs/architecture.md shows the same as a picture.
func layers() map[string][]string {
	return map[string][]string{
		"connector":        {},
		"gpu":              {},
		"internal/zmtp":    {},
		"internal/config":  {},
		"store":            {"connector", "internal/zmtp"},
		"leader":           {"connector", "store"},
		"worker":           {"connector", "store", "gpu"},
		"router":           {"connector", "store", "internal/zmtp"},
		"internal/daemon":  {"connector", "store", "gpu", "leader", "worker", "internal/zmtp"},
		"internal/engine":  {"connector"},
		"internal/demo":    {"connector", "internal/engine", "internal/daemon", "store"},
		"internal/bench":   {"connector", "store", "gpu", "leader", "worker", "router", "internal/daemon", "internal/engine"},
		"internal/testkit": {"connector", "store", "internal/zmtp"},
		"internal/lint":    {},
		"integration":      {"connector", "internal/engine", "internal/daemon", "store", "leader", "worker", "internal/config", "router", "internal/testkit"},
		"cmd":              {"internal/config", "internal/daemon", "internal/demo", "internal/engine", "connector", "store", "leader", "worker", "router", "internal/bench"},
	}
}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath, Dir, Doc, Name                  string
	GoFiles, Imports, TestImports, XTestImports []string
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// part is the top-level folder of an import path of this module, or "".
func part(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	top, below, _ := strings.Cut(rest, "/")
	if top == "internal" {
		below, _, _ = strings.Cut(below, "/")
		return top + "/" + below
	}
	return top
}

func TestImportsPointDownward(t *testing.T) {
	allowed := layers()
	for _, p := range packages(t) {
		from := part(p.ImportPath)
		if _, known := allowed[from]; !known {
			t.Errorf("%s: folder %q is not in the table of layers; add it with what it may import", p.ImportPath, from)
			continue
		}
		for _, imp := range p.Imports {
			to := part(imp)
			if to != "" && to != from && !slices.Contains(allowed[from], to) {
				t.Errorf("%s imports %s: %s may import only %v", p.ImportPath, imp, from, allowed[from])
			}
		}
	}
}

// What injects faults is for tests: nothing that is part of the program imports it.
func TestFaultsStayInTests(t *testing.T) {
	equipment := func(path string) bool {
		return strings.Contains(path, "/testkit/") || strings.HasPrefix(path, module+"/integration/")
	}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if equipment(imp) && !equipment(p.ImportPath) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

func TestFlagsAndGlobalsStayInCmd(t *testing.T) {
	for _, p := range packages(t) {
		if part(p.ImportPath) == "cmd" {
			continue
		}
		for _, forbidden := range []string{"flag", "github.com/alecthomas/kong", "github.com/schollz/progressbar/v3", "encoding/gob", "log"} {
			if slices.Contains(p.Imports, forbidden) {
				t.Errorf("%s imports %s", p.ImportPath, forbidden)
			}
		}
	}
}

func TestEveryPackageHasADocComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// goFiles lists the Go files of the checkout.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root(t) || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestFilesStayReadable(t *testing.T) {
	const maxLines = 400
	for _, path := range goFiles(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines && !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s has %d lines, at most %d", path, n, maxLines)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), path, b, parser.ParseComments); err != nil {
			t.Error(err)
		}
	}
}

// The project speaks of itself alone: no path of a developer's machine is committed.
func TestNoMachinePaths(t *testing.T) {
	machine := regexp.MustCompile(`(^|[\s"'(=])/(work|root|home)/`)
	for _, path := range goFiles(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, filepath.Join("lint", "lint_test.go")) {
			continue
		}
		if m := machine.Find(b); m != nil {
			t.Errorf("%s names a path of a machine: %q", path, m)
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

func TestVet(t *testing.T) { tool(t, "go", "vet", "./...") }

func TestStaticcheck(t *testing.T) { tool(t, "go", "tool", "staticcheck", "./...") }

func TestBuildsWithoutCgo(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	tool(t, "go", "build", "-o", os.DevNull, "./...")
}
