package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/kvconn/kvconn"

// pkg is what `go list -json` says about a package.
type pkg struct {
	ImportPath, Doc                            string
	GoFiles, IgnoredGoFiles, CgoFiles, Imports []string
}

// path is the package's folder in the module.
func (p *pkg) path() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// list asks `go list` for the packages of the module, once.
var list = sync.OnceValues(func() (all []pkg, err error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,GoFiles,IgnoredGoFiles,CgoFiles,Imports", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	for dec := json.NewDecoder(bytes.NewReader(out)); err == nil; {
		var p pkg
		if err = dec.Decode(&p); err == nil {
			all = append(all, p)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
})

func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := list()
	if err != nil || len(all) == 0 {
		t.Fatalf("go list: %d packages, %v", len(all), err)
	}
	return all
}

// room is a row of the table of folders: its folders, and the rooms that they may import.
type room struct {
	folders, imports []string
	tree             bool // what lies in the folders belongs to them: the table has "/..."
	packages         int
	used             map[string]bool
}

const architecture = "docs/architecture.md"

// rooms reads the table of folders in docs/architecture.md, by folder.
func rooms(t *testing.T) map[string]*room {
	t.Helper()
	const head = "| folder | what it owns | imports |\n|---|---|---|\n"
	_, table, found := strings.Cut(string(read(t, architecture)), head)
	if !found {
		t.Fatalf("%s has no table %q", architecture, head)
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	folders := func(cell string) (list []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			list = append(list, strings.TrimSuffix(m[1], "/..."))
		}
		return list
	}
	all := make(map[string]*room)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 {
			break
		}
		r := &room{folders: folders(cells[1]), imports: folders(cells[3]), tree: strings.Contains(cells[1], "/..."), used: make(map[string]bool)}
		for _, f := range r.folders {
			if all[f] != nil {
				t.Errorf("%s has two rows for %s", architecture, f)
			}
			all[f] = r
		}
	}
	return all
}

// folderOf returns the longest folder of the table that a package lies in, or "".
func folderOf(all map[string]*room, path string) string {
	for ; path != ""; path = path[:max(strings.LastIndex(path, "/"), 0)] {
		if all[path] != nil {
			return path
		}
	}
	return ""
}

// The table in docs/architecture.md is what packages import, no less and no more.
func TestImportsAreThoseOfTheArchitecture(t *testing.T) {
	all := rooms(t)
	for _, p := range packages(t) {
		from := folderOf(all, p.path())
		if from == "" || from != p.path() && !all[from].tree {
			t.Errorf("%s is in no row of the table in %s: add one, with what it may import", p.path(), architecture)
			continue
		}
		r := all[from]
		r.packages++
		for _, imp := range p.Imports {
			imp, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			to := folderOf(all, imp)
			switch {
			case to == from:
			case slices.Contains(r.imports, to):
				r.used[to] = true
			default:
				t.Errorf("%s imports %s, but by the table in %s %s may import only %v", p.path(), imp, architecture, from, r.imports)
			}
		}
	}
	for folder, r := range all {
		if r.packages == 0 || r.tree && r.packages == 1 {
			t.Errorf("the table in %s has a row for %s, which has %d packages", architecture, folder, r.packages)
		}
		for _, imp := range r.imports {
			if !r.used[imp] {
				t.Errorf("the table in %s lets %s import %s, which it does not", architecture, folder, imp)
			}
		}
	}
}

// equipment reports whether a package is there to test or measure the product.
func equipment(path string) bool {
	return regexp.MustCompile(`^(internal/(bench|testkit|lint)|integration)(/|$)`).MatchString(path)
}

// The product works without what tests and measures it, whatever the table says. Only the
// command line has the benches, as `kvconnd bench`.
func TestProductImportsNoEquipment(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if slices.Contains([]string{"testing", "net/http/httptest"}, imp) && !equipment(p.path()) {
				t.Errorf("%s imports %s", p.path(), imp)
			}
			imp, ours := strings.CutPrefix(imp, module+"/")
			command := commandLine(p.path()) && strings.HasPrefix(imp, "internal/bench/")
			if ours && equipment(imp) && !equipment(p.path()) && !command {
				t.Errorf("%s imports %s", p.path(), imp)
			}
		}
	}
}

// The daemon knows nothing about routing, whatever the table says.
func TestTheDaemonImportsNoRouter(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if strings.HasPrefix(p.path(), "internal/daemon") && strings.HasPrefix(imp, module+"/router/") {
				t.Errorf("%s imports %s", p.path(), imp)
			}
		}
	}
}

// No rule here sees a file that is built elsewhere only, and none needs a C compiler. The exceptions are vetted by
// .ci/run in the builds that they are for.
func TestEveryFileIsBuilt(t *testing.T) {
	elsewhere := map[string]bool{
		"gpu/libcuda/dl_none.go":   true, // the build without GPUs
		"gpu/libcuda/ipc_amd64.go": true, // how a structure is passed by value
		"gpu/libcuda/ipc_arm64.go": true,
	}
	for _, p := range packages(t) {
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo: %v", p.path(), p.CgoFiles)
		}
		for _, file := range p.IgnoredGoFiles {
			if !strings.HasSuffix(file, "_test.go") && !elsewhere[p.path()+"/"+file] {
				t.Errorf("%s/%s is not built here", p.path(), file)
			}
		}
	}
}

// commandLine reports whether a package is part of the command line: the program, or the commands that do not fit
// into its folder.
func commandLine(path string) bool {
	return strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "internal/cli/")
}

func TestFlagsAndGlobalsStayInTheCommandLine(t *testing.T) {
	for _, p := range packages(t) {
		// The seed of package rapid is a flag and nothing else.
		if commandLine(p.path()) || p.path() == "internal/testkit/property" {
			continue
		}
		for _, forbidden := range []string{"flag", "github.com/alecthomas/kong", "github.com/schollz/progressbar/v3", "encoding/gob", "log"} {
			if slices.Contains(p.Imports, forbidden) {
				t.Errorf("%s imports %s", p.path(), forbidden)
			}
		}
	}
}

func TestEveryPackageHasADocComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.path())
		}
	}
}
