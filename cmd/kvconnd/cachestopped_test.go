package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/store/archive"
)

// stoppedStore is the directory of a daemon that has saved some prompts and stopped, and what it had.
func stoppedStore(t *testing.T, flags ...string) (s *served, n admin.Namespace, prompts [][]uint32) {
	t.Helper()
	const length = 6 * demoBlockTokens
	s = serve(t, t.TempDir(), flags...)
	prompts = [][]uint32{promptTokens(1, 0, length), promptTokens(2, 0, length)}
	s.complete(1, prompts...)
	n = s.namespace()
	s.stop()
	return s, n, prompts
}

// Records go from one store to another while no daemon runs on either. The daemon that starts then has all of them.
func TestCacheExportsAndImportsOfStoppedStores(t *testing.T) {
	archivesAllowed(t)
	s, n, prompts := stoppedStore(t)
	file := filepath.Join(t.TempDir(), "kv")
	var e, i archive.Imported
	export := []string{"export", "--namespace", n.Digest[:12], "--output", file}
	if status, errs := s.cache(&e, export...); status != 0 || e.Records != n.Records || e.Bytes != n.Bytes || !e.Complete {
		t.Fatalf("%d: %s %+v, want %+v", status, errs, e, n)
	}
	if status, errs := s.cache(nil, export...); status != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("%d: %s", status, errs)
	}
	if status, errs := s.cache(nil, "export", "--model", "no such", "--output", file+"2"); status != 1 || !strings.Contains(errs, "no model") {
		t.Errorf("%d: %s", status, errs)
	}

	base := t.TempDir()
	dir := filepath.Join(base, "d")
	other := &served{t: t, dir: dir}
	if status, errs := other.cache(nil, "import", file); status != 1 || !strings.Contains(errs, "make the directory") {
		t.Errorf("a directory that is not there: %d: %s", status, errs)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if status, errs := other.cache(nil, "import", file+"3"); status != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("a file that is not there: %d: %s", status, errs)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a store was made: %v %v", entries, err)
	}
	if status, errs := other.cache(&i, "import", "--max-bytes", "64MiB", file); status != 0 || i.Records != n.Records || i.Bytes != n.Bytes || !i.Complete {
		t.Fatalf("%d: %s %+v", status, errs, i)
	}
	if status, _, errs := kvconnd("fsck", "--payload", dir); status != 0 {
		t.Errorf("the store that was imported into: %d: %s", status, errs)
	}
	again := serve(t, base)
	if got := again.namespace(); got.Digest != n.Digest || got.Records != n.Records || got.Bytes != n.Bytes {
		t.Errorf("%+v, was %+v", got, n)
	}
	for _, cached := range again.complete(1, prompts...) {
		if cached < len(prompts[0])-demoBlockTokens {
			t.Errorf("%d tokens are cached", cached)
		}
	}
}

// A bit that is flipped on disk costs its record, and the command says so; one that is flipped in the file, too.
func TestCacheExportOfAStoppedStoreLeavesDamageOut(t *testing.T) {
	archivesAllowed(t)
	s, n, _ := stoppedStore(t)
	flipBits(t, s.dir)
	file := filepath.Join(t.TempDir(), "kv")
	if status, errs := s.cache(nil, "export", "--model", n.Model, "--output", file); status != 1 || !strings.Contains(errs, "damaged, and are not in the file") || !strings.Contains(errs, "fsck") {
		t.Errorf("%d: %s", status, errs)
	}
	var i archive.Imported
	other := &served{t: t, dir: t.TempDir()}
	if status, errs := other.cache(&i, "import", file); status != 0 || i.Records == 0 || i.Records >= n.Records {
		t.Errorf("%d: %s %+v of %d records", status, errs, i, n.Records)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, errs := other.cache(nil, "import", file); status != 1 || !strings.Contains(errs, "the file is damaged") {
		t.Errorf("%d: %s", status, errs)
	}
}

// A daemon has its store for itself: commands say how to go on.
func TestCacheExportOfAStoreThatADaemonHas(t *testing.T) {
	s := serve(t, t.TempDir(), "--http", "off")
	file := filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"export", "--model", "m", "--output", file + "2"}, {"import", file}} {
		if status, errs := s.cache(nil, args...); status != 1 || !strings.Contains(errs, "in use by another process") || !strings.Contains(errs, "stop the daemon") {
			t.Errorf("%q: %d: %s", args, status, errs)
		}
	}
	s.stop()
	s = serve(t, t.TempDir(), "--http-token", "a token of this test")
	if status, errs := s.cache(nil, "export", "--model", "m", "--output", file+"2"); status != 1 || !strings.Contains(errs, "KVCONN_HTTP_TOKEN") || !strings.Contains(errs, "stop the daemon") {
		t.Errorf("%d: %s", status, errs)
	}
}

// What is no store stays as it is.
func TestCacheExportMakesNoStore(t *testing.T) {
	dir := t.TempDir()
	s := &served{t: t, dir: dir}
	if status, errs := s.cache(nil, "export", "--model", "m", "--output", filepath.Join(t.TempDir(), "kv")); status != 1 || !strings.Contains(errs, "holds no store") {
		t.Errorf("%d: %s", status, errs)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, errs := s.cache(nil, "import", tokensFile(t, promptTokens(1, 0, 4))); status != 1 || !strings.Contains(errs, "holds no store") {
		t.Errorf("%d: %s", status, errs)
	}
}

// A sealed store needs its keys, and the word that payloads may leave it in plain text.
func TestCacheExportOfAStoppedSealedStore(t *testing.T) {
	archivesAllowed(t)
	key, file := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "kv")
	if status, _, errs := kvconnd("key", "new", key); status != 0 {
		t.Fatal(errs)
	}
	s, n, _ := stoppedStore(t, "--key-file", key)
	export := []string{"export", "--model", n.Model, "--output", file}
	if status, errs := s.cache(nil, export...); status != 1 || !strings.Contains(errs, "--key-file") {
		t.Errorf("%d: %s", status, errs)
	}
	export = append(export, "--key-file", key)
	if status, errs := s.cache(nil, export...); status != 1 || !strings.Contains(errs, "--unsealed") {
		t.Errorf("%d: %s", status, errs)
	}
	var e, i archive.Imported
	if status, errs := s.cache(&e, append(export, "--unsealed")...); status != 0 || e.Records != n.Records {
		t.Fatalf("%d: %s %+v", status, errs, e)
	}
	other := &served{t: t, dir: t.TempDir()}
	if status, errs := other.cache(&i, "import", "--key-file", key, file); status != 0 || i.Records != n.Records {
		t.Errorf("%d: %s %+v", status, errs, i)
	}
	if status, errs := other.cache(nil, "export", "--model", n.Model, "--output", file+"2"); status != 1 || !strings.Contains(errs, "sealed") {
		t.Errorf("%d: %s", status, errs)
	}
}

// A signal ends the commands early: a file that is not complete is gone, and the store is whole.
func TestCacheExportAndImportEndOnASignal(t *testing.T) {
	archivesAllowed(t)
	s, n, _ := stoppedStore(t)
	file := filepath.Join(t.TempDir(), "kv")
	if status, errs := s.cache(nil, "export", "--model", n.Model, "--output", file); status != 0 {
		t.Fatal(errs)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	in := &halted{from: bytes.NewReader(whole[:len(whole)/2]), then: cancel, stay: make(chan struct{})}
	defer close(in.stay)
	if err := runWith(ctx, t, &terminal.Streams{In: in, Out: &out, Err: &errs}, "cache", "import", "--dir", dir, "-"); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("%v %s", err, &errs)
	}
	var report struct{ Records int64 }
	status, text, _ := kvconnd("fsck", "--payload", "--json", dir)
	if err := json.Unmarshal([]byte(text), &report); status != 0 || err != nil || report.Records == 0 || report.Records >= n.Records {
		t.Errorf("the store that was imported into: %d, %v, %s", status, err, text)
	}
	if err := runWith(ctx, t, &terminal.Streams{In: in, Out: &out, Err: &errs}, "cache", "export", "--dir", s.dir, "--model", n.Model, "--output", file+"2"); err == nil {
		t.Error("an export that was broken off succeeds")
	}
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("its file is there")
	}
	if status, _, errs := kvconnd("fsck", "--payload", s.dir); status != 0 {
		t.Errorf("the store that was exported: %d: %s", status, errs)
	}
}

// halted is an input that stays open after its end.
type halted struct {
	from io.Reader
	then func()
	stay chan struct{}
}

func (h *halted) Read(b []byte) (int, error) {
	n, err := h.from.Read(b)
	if err != nil {
		h.then()
		<-h.stay
	}
	return n, err
}

// runWith runs a command line until ctx ends.
func runWith(ctx context.Context, t *testing.T, std *terminal.Streams, args ...string) error {
	t.Helper()
	p, err := newParser(ctx, new(cli), std, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	command, err := p.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return command.Run()
}

// What this process writes another user's daemon could not use.
func TestCacheExportLeavesStoresOfOtherUsersAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	s, n, _ := stoppedStore(t)
	if err := os.Chown(filepath.Join(s.dir, "FORMAT"), 4711, -1); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"export", "--model", n.Model, "--output", file + "2"}, {"import", file}} {
		if status, errs := s.cache(nil, args...); status != 1 || !strings.Contains(errs, "belongs to user 4711") {
			t.Errorf("%q: %d: %s", args, status, errs)
		}
	}
}
