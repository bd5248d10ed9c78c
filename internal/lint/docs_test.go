package lint

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// anchors are the names of a document's headings in links.
func anchors(text string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(name, " ", "-"))
	}
	return list
}

func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, d := range docs.All(t) {
		for _, m := range link.FindAllStringSubmatch(d.Text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := d.Path
			if target != "" {
				to = path.Join(path.Dir(d.Path), target)
			}
			if _, err := os.Stat(filepath.Join(root(t), to)); err != nil {
				t.Errorf("%s links to %s: %v", d.Path, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(string(read(t, to))), anchor) {
				t.Errorf("%s links to %s, which has no such heading", d.Path, m[1])
			}
		}
	}
}

// A newcomer finds every document from docs/README.md.
func TestTheListOfDocumentsIsWhole(t *testing.T) {
	list := string(read(t, "docs/README.md"))
	for _, d := range docs.All(t) {
		if dir, name := path.Split(d.Path); dir == "docs/" && name != "README.md" && !strings.Contains(list, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// Files that documents, comments and scripts name exist, and so do folders that documents name.
func TestPathsThatAreNamedExist(t *testing.T) {
	const top = `(?:\.ci|cmd|connector|docs|gpu|integration|internal|leader|router|store|worker)`
	file := regexp.MustCompile(`(?:^|[^\w./-])(` + top + `(?:/[\w.-]+)+\.(?:go|md|py|yaml|json|txt|gz))\b`)
	folder := regexp.MustCompile(`^` + top + `(?:/[\w.-]+)*/?$`)
	check := func(in, named string) {
		if _, err := os.Stat(filepath.Join(root(t), named)); err != nil {
			t.Errorf("%s names %s, which is not there", in, named)
		}
	}
	for _, in := range textFiles(t) {
		for _, m := range file.FindAllStringSubmatch(string(read(t, in)), -1) {
			check(in, m[1])
		}
	}
	for _, d := range docs.All(t) {
		for _, span := range d.Spans {
			if named := strings.TrimSuffix(span, "/..."); strings.Contains(span, "/") && folder.MatchString(named) {
				check(d.Path, named)
			}
		}
	}
}

// tests lists the functions that `go test` runs, by folder.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)
	all := make(map[string][]string)
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range function.FindAllSubmatch(read(t, file), -1) {
				all[path.Dir(file)] = append(all[path.Dir(file)], string(m[1]))
			}
		}
	}
	return all
}

// goCommand is a command line of the go tool.
type goCommand struct {
	in, line string
	// packages are its folders; a pattern ends in "/...".
	packages   []string
	run, bench string
}

// goCommands finds the command lines of `go test`, `go run` and the like in documents, scripts and comments.
func goCommands(t *testing.T) (all []goCommand) {
	t.Helper()
	command := regexp.MustCompile(`\bgo (?:test|run|build|install|vet) [^\n` + "`" + `]*`)
	find := func(in string, texts ...string) {
		for _, text := range texts {
			for _, line := range command.FindAllString(strings.ReplaceAll(text, "\\\n", " "), -1) {
				all = append(all, parseCommand(in, line))
			}
		}
	}
	for _, in := range textFiles(t) {
		switch path.Ext(in) {
		case ".go":
			find(in, prose(t, in, read(t, in))...)
		case ".md":
		default:
			find(in, string(read(t, in)))
		}
	}
	for _, d := range docs.All(t) {
		find(d.Path, slices.Concat(d.Spans, d.Lines)...)
	}
	return all
}

func parseCommand(in, line string) goCommand {
	c := goCommand{in: in, line: line}
	words := strings.Fields(strings.NewReplacer("'", "", `"`, "", ")", "", ",", "").Replace(line))
	for i := 2; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-run" && i+1 < len(words):
			i++
			c.run = words[i]
		case w == "-bench" && i+1 < len(words):
			i++
			c.bench = words[i]
		case w == "./...":
			c.packages = append(c.packages, w)
		case strings.HasSuffix(w, "/..."):
			c.packages = append(c.packages, path.Clean(w))
		case strings.HasPrefix(w, "./"):
			c.packages = append(c.packages, path.Clean(strings.TrimRight(w, ".:;")))
		}
	}
	return c
}

// first is the part of a pattern of tests that is about functions.
func first(pattern string) *regexp.Regexp {
	pattern, _, _ = strings.Cut(pattern, "/")
	return regexp.MustCompile(pattern)
}

// Each `go test` that is shown has a package and something to run in it.
func TestCommandsOfTheGoToolThatAreShownWork(t *testing.T) {
	byFolder, found := tests(t), 0
	for _, c := range goCommands(t) {
		for _, p := range c.packages {
			found++
			tree, whole := strings.CutSuffix(p, "/...")
			if info, err := os.Stat(filepath.Join(root(t), tree)); err != nil || !info.IsDir() {
				t.Errorf("%s shows %q: there is no folder %s", c.in, c.line, tree)
				continue
			}
			for kind, pattern := range map[string]string{"Test": c.run, "Benchmark": c.bench} {
				if pattern == "" || pattern == "^$" {
					continue
				}
				matches := false
				for folder, names := range byFolder {
					if folder == tree || whole && (tree == "." || strings.HasPrefix(folder, tree+"/")) {
						matches = matches || slices.ContainsFunc(names, func(n string) bool {
							return strings.HasPrefix(n, kind) && first(pattern).MatchString(n)
						})
					}
				}
				if !matches {
					t.Errorf("%s shows %q: no %s of that name in %s", c.in, c.line, kind, p)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d packages were found in commands", found)
	}
}

// Tests that documents name exist. "..." stands for the rest of several names.
func TestTestsThatDocumentsNameExist(t *testing.T) {
	named := regexp.MustCompile(`^(?:Test|Benchmark|Fuzz)[A-Z]\w*(?:\.\.\.)?$`)
	var all []string
	for _, names := range tests(t) {
		all = append(all, names...)
	}
	for _, d := range docs.All(t) {
		for _, span := range d.Spans {
			if !named.MatchString(span) {
				continue
			}
			begin, several := strings.CutSuffix(span, "...")
			if !slices.ContainsFunc(all, func(n string) bool { return n == begin || several && strings.HasPrefix(n, begin) }) {
				t.Errorf("%s names %s, which is no test", d.Path, span)
			}
		}
	}
}
