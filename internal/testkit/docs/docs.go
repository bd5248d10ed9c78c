// Package docs lets tests check what documents state: figures, commands, paths and names.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Root is the repository's root directory.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	t.Fatalf("the root of the repository is not above: %v", err)
	return ""
}

// Says checks that a document, named by its path in the folder docs, has a text, and logs the text: what a test
// found. How lines are wrapped makes no difference.
func Says(t testing.TB, document, text string) {
	t.Helper()
	t.Log(text)
	b, err := os.ReadFile(filepath.Join(Root(t), "docs", document))
	if err != nil {
		t.Fatal(err)
	}
	one := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if !strings.Contains(one(string(b)), one(text)) {
		t.Errorf("docs/%s has other figures", document)
	}
}

// Document is a Markdown file of the repository.
type Document struct {
	// Path is slash-separated and begins at the root.
	Path, Text string
	// Spans are the pieces of code in sentences and tables, Lines those of blocks of code. A line
	// that goes on after a backslash is one.
	Spans, Lines []string
}

// All returns the repository's documents.
func All(t testing.TB) []Document {
	t.Helper()
	var all []Document
	tree := os.DirFS(Root(t))
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		b, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		all = append(all, parse(path, string(b)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parse(path, text string) Document {
	d := Document{Path: path, Text: text}
	var prose strings.Builder
	fenced, block := false, true // a block of code follows an empty line
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced || block && strings.HasPrefix(line, "    "):
			d.Lines = append(d.Lines, strings.TrimSpace(line))
		default:
			block = strings.TrimSpace(line) == ""
			prose.WriteString(line + "\n")
		}
	}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(prose.String(), -1) {
		span := strings.ReplaceAll(m[1], `\|`, "|") // as tables have it
		d.Spans = append(d.Spans, strings.Join(strings.Fields(span), " "))
	}
	return d
}
