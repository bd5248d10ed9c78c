package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeyFileIsMadeAndChecked(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	if status, out, errs := kvconnd("key", "new", file); status != 0 || !strings.HasPrefix(out, "key ") || errs != "" {
		t.Fatalf("status %d, %q, %q", status, out, errs)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, errs := kvconnd("key", "new", file); status == 0 || !strings.Contains(errs, "exists") {
		t.Errorf("a file that is there: status %d, %q", status, errs)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed (%v)", err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, name := range map[string]string{"chmod 600": file, "no such file": file + "2"} {
		status, _, errs := kvconnd("serve", "--dir", filepath.Join(dir, "store"), "--key-file", name)
		if status == 0 || !strings.Contains(errs, want) || strings.Contains(errs, strings.TrimSpace(string(before))) {
			t.Errorf("serve: status %d, %q, want %s", status, errs, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil {
		t.Error("a store was made without its keys")
	}
}
