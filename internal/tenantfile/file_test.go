package tenantfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func of(salt string) tenants.ID { return tenants.Of(connector.Scope{Salt: salt}.Digest()) }

func TestATenantIsNamedByItsSaltOrItsDigest(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.salt", "secret of a\n")
	text := fmt.Sprintf("default_max_bytes: 20GiB\ntenants:\n  - {name: a, cache_salt_file: a.salt, max_bytes: 100GB}\n  - {name: b, digest: \"%s\"}\n", of("b"))
	f, err := Load(write(t, dir, "tenants.yaml", text))
	if err != nil {
		t.Fatal(err)
	}
	want := []Tenant{{Name: "a", ID: of("secret of a"), MaxBytes: 100e9}, {Name: "b", ID: of("b")}}
	if fmt.Sprint(f.Tenants) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", f.Tenants, want)
	}
	if l := f.Quotas(); l.Of(of("secret of a")) != 100e9 || l.Of(of("b")) != 20<<30 || l.Of(of("c")) != 20<<30 || l.Of(tenants.ID{}) != 0 || l.Of(tenants.Unknown) != 0 || l.Of(tenants.Rest) != 20<<30 {
		t.Errorf("%+v", l)
	}
	if l := (*File)(nil).Quotas(); l.Any() {
		t.Errorf("%+v", l)
	}
	if f, err := Load(write(t, dir, "empty.yaml", "")); err != nil || len(f.Tenants) != 0 {
		t.Errorf("%v, %v", f, err)
	}
}

func TestAWrongFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "long.salt", strings.Repeat("x", connector.MaxScopeBytes+1))
	write(t, dir, "empty.salt", "\n")
	for text, want := range map[string]string{
		"tenants: [{name: a}]":                                                "one of",
		"tenants: [{name: a, digest: \"12\"}]":                                "16 hexadecimal",
		"tenants: [{digest: \"0123456789abcdef\"}]":                           "name",
		"tenants: [{name: \"a\\u001b\", cache_salt_file: x}]":                 "name",
		"tenants: [{name: a, cache_salt_file: not.there}]":                    "no such file",
		"tenants: [{name: a, cache_salt_file: long.salt}]":                    "bytes",
		"tenants: [{name: a, cache_salt_file: empty.salt}]":                   "bytes",
		"tenants: [{name: a, salt: s}]":                                       "salt",
		"tenants: 1":                                                          "tenants",
		"default_max_bytes: 12":                                               "at least 1MiB",
		"tenants: [{name: a, digest: \"0123456789abcdef\", max_bytes: 0}]":    "at least 1MiB",
		"tenants: [{name: a, digest: \"0123456789abcdef\", max_bytes: lots}]": "size",
		"quota: 1": "quota",
		"tenants: []\n---\ndefault_max_bytes: 1GiB":                                                   "second YAML document",
		"tenants: [{name: a, cache_salt_file: x, digest: \"1\"}]":                                     "one of",
		"tenants: [{name: a, digest: \"0123456789abcdef\"}, {name: a, digest: \"0123456789abcdee\"}]": "twice",
		"tenants: [{name: a, digest: \"0123456789abcdef\"}, {name: b, digest: \"0123456789ABCDEF\"}]": "one cache_salt",
	} {
		if _, err := Load(write(t, dir, "tenants.yaml", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Join(dir, "pipe")); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); err == nil {
		t.Error("a file that is not there passes")
	}
	if _, err := Load(write(t, dir, "large.yaml", strings.Repeat("#", maxFileBytes+1))); err == nil {
		t.Error("a file of any size is read")
	}
}

func TestAnErrorHasItsLine(t *testing.T) {
	dir := t.TempDir()
	const digest = "digest: \"0123456789abcdef\""
	for text, line := range map[string]int{
		"# quotas\ndefault_max_bytes: 12":                                                      2,
		"default_max_bytes: 1GB\ntenants:\n  - {name: a, " + digest + "}\n\n  - {name: b}":     5,
		"tenants:\n  - name: a\n    " + digest + "\n  - name: a\n    digest: \"00\"":           4,
		"tenants:\n  - {name: a, " + digest + "}\n  - {name: b, " + digest + "}":               3,
		"tenants:\n  - {name: a, " + digest + "}\n  - {name: a, digest: \"0123456789abcdee\"}": 3,
		"x: 1\n":                               1,
		"tenants:\n  - name: a\n    salt: 2\n": 3,
		"tenants:\n  - {name: a, max_bytes: lots}\n":    2,
		"tenants:\n  - {name: a}\n  - {name: [\n":       3,
		"tenants:\n  - &x {name: a}\n  - *x\n":          2,
		"l: &l\n  - {name: a}\ntenants: *l\n":           1,
		"tenants:\n  - {name: a, cache_salt_file: x}\n": 2,
	} {
		if _, err := Load(write(t, dir, "tenants.yaml", text)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d", line)) {
			t.Errorf("%q: %v, want line %d", text, err, line)
		}
	}
}

// A key that is misspelt for every tenant is one mistake, and no log line of megabytes.
func TestAnErrorOfEachTenantIsToldAFewTimes(t *testing.T) {
	text := "tenants:\n" + strings.Repeat("  - {name: a, maxbytes: 1GB}\n", maxTenants)
	for name, text := range map[string]string{"each": text, "long": "tenants: []\n" + "? " + strings.Repeat("k", 1<<20) + "\n: 1\n"} {
		_, err := Load(write(t, t.TempDir(), "tenants.yaml", text))
		if err == nil || len(err.Error()) > 2000 || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %.300v", name, err)
		}
		if name == "each" && !strings.Contains(err.Error(), "and 9995 more") {
			t.Errorf("%.600v", err)
		}
	}
}
