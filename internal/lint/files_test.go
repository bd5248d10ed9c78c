package lint

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// root is the directory of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// files returns the files of the checkout that keep accepts, as slash-separated paths from its
// root. What tools leave there, and testdata, is not looked at.
func files(t *testing.T, keep func(path string) bool) []string {
	t.Helper()
	var found []string
	tree := os.DirFS(root(t))
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case d.IsDir() && path != ".":
			hidden := strings.HasPrefix(name, ".") && name != ".ci"
			if hidden || slices.Contains([]string{"testdata", "__pycache__", "build", "dist"}, name) || strings.HasSuffix(name, ".egg-info") {
				return fs.SkipDir
			}
		case d.Type().IsRegular() && keep(path):
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// textFiles returns the files of the checkout that people read, without the checks themselves, which have
// in them what they look for.
func textFiles(t *testing.T) []string {
	t.Helper()
	return files(t, func(path string) bool {
		if strings.HasPrefix(path, "internal/lint/") || slices.Contains([]string{".git", "LICENSE", "go.sum"}, path) {
			return false
		}
		b := read(t, path)
		return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b)
	})
}

// goFiles returns the Go files of the checkout.
func goFiles(t *testing.T) []string {
	t.Helper()
	return files(t, func(path string) bool { return strings.HasSuffix(path, ".go") })
}

// read returns the contents of a file that files found.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func lines(b []byte) int { return bytes.Count(b, []byte("\n")) }
