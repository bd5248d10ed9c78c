// Package docs lets tests check the figures that documents state.
package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Says checks that a document, named by its path in the folder docs, has a text, and logs the text: what a test
// found. How lines are wrapped makes no difference.
func Says(t testing.TB, document, text string) {
	t.Helper()
	t.Log(text)
	dir := "."
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if abs, err := filepath.Abs(dir); err != nil || abs == filepath.Dir(abs) {
			t.Fatalf("the root of the repository is not above: %v", err)
		}
		dir = filepath.Join(dir, "..")
	}
	b, err := os.ReadFile(filepath.Join(dir, "docs", document))
	if err != nil {
		t.Fatal(err)
	}
	one := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if !strings.Contains(one(string(b)), one(text)) {
		t.Errorf("docs/%s has other figures", document)
	}
}
