package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testBuilder builds packages of a program that is none, in folders of its own.
func testBuilder(t *testing.T) (*builder, *program) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &builder{
		checkout: &checkout{root: root, version: "1.2.3", commit: "0123456789abcdef", at: time.Unix(1_700_000_000, 0).UTC()},
		work:     dir, done: filepath.Join(dir, "done"), maintainer: "Somebody <somebody@example.org>", log: io.Discard,
	}
	p := &program{arch: "amd64", path: filepath.Join(dir, "kvconnd"), notices: filepath.Join(dir, "NOTICES.txt")}
	for file, text := range map[string]string{p.path: strings.Repeat("a program", 100_000), p.notices: "notices"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(b.done, 0o755); err != nil {
		t.Fatal(err)
	}
	return b, p
}

// makeAll makes what needs no other program than this one.
func makeAll(t *testing.T, b *builder, p *program) map[string][]byte {
	t.Helper()
	for _, make := range []func(context.Context, *program) error{b.tarball, b.packager("deb"), b.packager("rpm"), b.image} {
		if err := make(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	made := make(map[string][]byte)
	entries, err := os.ReadDir(b.done)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if made[e.Name()], err = os.ReadFile(filepath.Join(b.done, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

// The time of day, the folder, the zone, the files' modes and times make no difference.
func TestTheSameCheckoutGivesTheSameBytes(t *testing.T) {
	b, p := testBuilder(t)
	first := makeAll(t, b, p)
	t.Setenv("TZ", "Pacific/Auckland")
	b, p = testBuilder(t)
	for _, file := range []string{p.path, p.notices} {
		if err := os.Chmod(file, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Now(), time.Unix(1_000_000_000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	second := makeAll(t, b, p)
	if len(first) != 4 || len(second) != 4 {
		t.Fatalf("%d and %d files", len(first), len(second))
	}
	for name, bytes1 := range first {
		if !bytes.Equal(bytes1, second[name]) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestTheTimeOfFilesIsChecked(t *testing.T) {
	for epoch, ok := range map[string]bool{
		"315532800": true, "1700000000": true, "": true,
		"0": false, "-1": false, "yesterday": false, "1700000000.5": false, "9999999999999": false, "4294967296": false,
	} {
		t.Setenv("SOURCE_DATE_EPOCH", epoch)
		src, err := findCheckout(t.Context(), ".")
		if epoch == "" && err != nil && strings.Contains(err.Error(), "set SOURCE_DATE_EPOCH") {
			continue // a checkout without Git
		}
		if (err == nil) != ok {
			t.Errorf("%q: %v", epoch, err)
		}
		if err == nil && (src.version == "" || src.at.Year() < 1980) {
			t.Errorf("%q: %+v", epoch, src)
		}
	}
	if _, err := findCheckout(t.Context(), t.TempDir()); err == nil {
		t.Error("a folder that is no checkout is taken for one")
	}
}

func TestABuildThatFailsLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	c := cli{Out: t.TempDir(), Arch: []string{"amd64"}, Only: []string{"wheel"}, Python: "python3"}
	if err := c.run(ctx, io.Discard); err == nil {
		t.Error("it built without its compiler")
	}
	if left, err := os.ReadDir(c.Out); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// The system's shell serves as a program that is linked as most are.
func TestProgramsThatNeedMoreThanPackagesSayAreRefused(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	arch := "amd64"
	if checkLinking(&program{arch: arch, path: shell}, false) != nil && strings.Contains(checkLinking(&program{arch: arch, path: shell}, false).Error(), "is for") {
		arch = "arm64"
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[arch]
	for _, tc := range []struct {
		arch   string
		static bool
		want   string
	}{{arch, true, "is not static"}, {other, false, "is for"}, {arch, false, "needs"}} {
		if err := checkLinking(&program{arch: tc.arch, path: shell}, tc.static); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if err := checkLinking(&program{arch: arch, path: "release_test.go"}, false); err == nil {
		t.Error("a text is taken for a program")
	}
}

func TestCertificatesAreReadable(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(certificates()) || len(bytes.Split(certificates(), []byte("BEGIN CERTIFICATE"))) < 50 {
		t.Error("there are few certificates, or none can be read")
	}
}

func TestLicencesAreFound(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"LICENSE", "LICENCE.md", "copying", "NOTICE.txt", "LICENSE-MIT", "license.go", "licenses_test.go", "main.go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := licences(dir)
	if err != nil || len(files) != 5 {
		t.Errorf("%v, %v", files, err)
	}
	out, err := printNotices(map[string][]string{"a v1": slices.Concat(files, files), "Go": files[:1]})
	if err != nil || bytes.Count(out, []byte("text of")) != 6 || bytes.Index(out, []byte("\nGo\n")) > bytes.Index(out, []byte("\na v1\n")) {
		t.Errorf("%s, %v", out, err)
	}
}
