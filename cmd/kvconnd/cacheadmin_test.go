package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/explain"
	"github.com/kvconn/kvconn/internal/daemon/warm"
	"github.com/kvconn/kvconn/internal/demo"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/archive"
)

// demoBlockTokens is the block size of the demo's engine.
const demoBlockTokens = 16

// served is a daemon in this process that was started by its command line.
type served struct {
	t           *testing.T
	dir, socket string
	log         *testlog.Text
	stop        func()
}

// serve starts a daemon on a directory below base.
func serve(t *testing.T, base string, flags ...string) *served {
	t.Helper()
	s := &served{t: t, dir: filepath.Join(base, "d"), socket: filepath.Join(base, "s"), log: new(testlog.Text)}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := newParser(ctx, new(cli), &terminal.Streams{Out: io.Discard, Err: s.log}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--dir", s.dir, "--socket", s.socket, "--http", "127.0.0.1:0", "--max-bytes", "64MiB", "--min-free", "0", "--host-bytes", "64MiB"}
	command, err := p.Parse(append(args, flags...))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- command.Run() }()
	stopped := false
	s.stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Errorf("%v\n%s", err, s.log)
			}
		}
	}
	t.Cleanup(s.stop)
	wait.For(t, "the daemon", func() bool { return strings.Contains(s.log.String(), "msg=ready") })
	return s
}

// promptTokens are the tokens of a prompt. The first common are the same in all prompts.
func promptTokens(prompt, common, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		if tokens[i] = uint32(i % 50); i >= common {
			tokens[i] = uint32((i*7 + prompt*13) % 50)
		}
	}
	return tokens
}

// complete has the built-in engine answer prompts, and returns how many tokens of each came from the cache.
func (s *served) complete(maxTokens int, prompts ...[]uint32) (cached []int) {
	s.t.Helper()
	var in, out bytes.Buffer
	for _, tokens := range prompts {
		if err := json.NewEncoder(&in).Encode(map[string]any{"id": "r", "tokens": tokens, "max_tokens": maxTokens}); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := demo.ServeEngine(s.t.Context(), demo.EngineOptions{Socket: s.socket, Logger: slog.New(slog.DiscardHandler)}, &in, &out); err != nil {
		s.t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	for d.More() {
		var c struct {
			Ready      bool
			Error      string
			DiskTokens int `json:"disk_tokens"`
			Tokens     []uint32
		}
		if err := d.Decode(&c); err != nil || c.Error != "" {
			s.t.Fatal(err, c.Error)
		}
		if !c.Ready {
			all := slices.Concat(prompts[len(cached)], c.Tokens)
			s.awaitSaved(all[:len(all)-1]) // the last token of an answer is never computed
			cached = append(cached, c.DiskTokens)
		}
	}
	return cached
}

// awaitSaved waits until all blocks of a prompt are stored: saves end after the engine.
func (s *served) awaitSaved(tokens []uint32) {
	s.t.Helper()
	model, file := s.namespace().Model, tokensFile(s.t, tokens)
	wait.For(s.t, "the saves", func() bool {
		_, out, _ := kvconnd("explain", "--dir", s.dir, "--model", model, "--tokens", file, "--json")
		var a explain.Answer
		return json.Unmarshal([]byte(out), &a) == nil && len(a.Namespaces) == 1 && a.Namespaces[0].Stored == a.Namespaces[0].Blocks
	})
}

// cache runs a command of `kvconnd cache` on the daemon, and decodes what it prints.
func (s *served) cache(answer any, args ...string) (status int, stderr string) {
	s.t.Helper()
	status, out, stderr := kvconnd(append(append([]string{"cache"}, args...), "--dir", s.dir, "--json")...)
	if answer != nil && status == 0 {
		if err := json.Unmarshal([]byte(out), answer); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
	return status, stderr
}

// namespace returns the daemon's only namespace.
func (s *served) namespace() admin.Namespace {
	s.t.Helper()
	var l admin.List
	if status, errs := s.cache(&l, "ls"); status != 0 || len(l.Namespaces) != 1 {
		s.t.Fatalf("%d: %s %+v", status, errs, l)
	}
	return l.Namespaces[0]
}

// tokensFile writes a prompt as the commands read it.
func tokensFile(t *testing.T, tokens []uint32) string {
	t.Helper()
	b, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ids.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// One prompt goes, with what was computed after it, from disk and memory; others keep what is their own.
func TestCacheRemovesOnePrompt(t *testing.T) {
	const common, length, answer = 2 * demoBlockTokens, 6 * demoBlockTokens, 3*demoBlockTokens + 1
	s := serve(t, t.TempDir())
	bad, good := promptTokens(1, common, length), promptTokens(2, common, length)
	s.complete(answer, bad, good)
	if cached := s.complete(1, bad, good); cached[0] < length-demoBlockTokens || cached[1] < length-demoBlockTokens {
		t.Fatalf("%v tokens are cached", cached)
	}
	n, file := s.namespace(), tokensFile(t, bad)
	var r admin.PromptRemoval
	rm := []string{"rm", "--model", n.Model, "--tokens", file}
	if status, errs := s.cache(&r, append(rm, "--dry-run")...); status != 0 || len(r.Namespaces) != 1 || !r.DryRun {
		t.Fatalf("%d: %s %+v", status, errs, r)
	}
	found := r.Namespaces[0]
	shards := found.Records / (length / demoBlockTokens)
	if found.Blocks != length/demoBlockTokens || shards == 0 || found.Records%shards != 0 || found.Continuations < 2*shards {
		t.Errorf("%+v", found)
	}
	if status, errs := s.cache(nil, rm...); status != 1 || !strings.Contains(errs, "--yes") {
		t.Errorf("%d: %s", status, errs)
	}
	if s.namespace().Records != n.Records {
		t.Error("records were removed without --yes")
	}
	if status, errs := s.cache(&r, append(rm, "--yes")...); status != 0 {
		t.Fatalf("%d: %s", status, errs)
	}
	if got := r.Namespaces[0]; got.Records != found.Records || got.Continuations != found.Continuations || got.HostRemoved == 0 {
		t.Errorf("%+v, counted %+v", got, found)
	}
	if left := s.namespace().Records; left != n.Records-found.Records-found.Continuations {
		t.Errorf("%d records are left of %d", left, n.Records)
	}
	if cached := s.complete(1, bad); cached[0] != 0 {
		t.Errorf("%d tokens of a removed prompt are cached", cached[0])
	}
	// Its beginning was computed again with the other prompt.
	if cached := s.complete(1, good); cached[0] < length-demoBlockTokens {
		t.Errorf("%d tokens of another prompt are cached", cached[0])
	}
	for _, args := range [][]string{
		{"rm", "--all", "--tokens", file}, {"rm", "--model", "no such model", "--tokens", file, "--yes"}, {"rm", "--model", n.Model, "--tokens", "no such file"},
	} {
		if status, _ := s.cache(nil, args...); status != 1 {
			t.Errorf("%v: status %d", args, status)
		}
	}
}

// Pins are made and ended by the names of what they keep, and outlive the daemon.
func TestCachePinsModelsAndPrompts(t *testing.T) {
	const length = 4 * demoBlockTokens
	base := t.TempDir()
	s := serve(t, base)
	first, second := promptTokens(1, 0, length), promptTokens(2, 0, length)
	s.complete(1, first, second)
	n, file := s.namespace(), tokensFile(t, first)
	var l admin.PinList
	pin := []string{"pin", "--model", n.Model, "--tokens", file}
	if status, errs := s.cache(&l, append(pin, "--dry-run")...); status != 0 || len(l.Pins) != 1 || l.Records != 0 {
		t.Fatalf("%d: %s %+v", status, errs, l)
	}
	if status, errs := s.cache(&l, append(pin, "--for", "1h")...); status != 0 || len(l.Pins) != 1 || l.Records == 0 || l.Pins[0].Blocks != length/demoBlockTokens || l.Pins[0].Model != n.Model {
		t.Fatalf("%d: %s %+v", status, errs, l)
	}
	prompt := l.Records
	if status, errs := s.cache(&l, "pin", "--namespace", n.Digest[:12]); status != 0 || len(l.Pins) != 1 || l.Records != n.Records {
		t.Fatalf("%d: %s %+v", status, errs, l)
	}
	for want, args := range map[string][]string{
		"400": {"pin", "--model", n.Model, "--for", "10000h"}, "is on disk": {"pin", "--model", n.Model, "--tokens", tokensFile(t, promptTokens(9, 0, length))},
		"give --model": {"pin"}, "needs --model": {"pin", "--namespace", n.Digest, "--tokens", file}, "no pin": {"unpin", "abcd"}, "no such pin": {"unpin", "--model", "x"},
	} {
		if status, errs := s.cache(nil, args...); status != 1 || want != "400" && !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %s", args, status, errs)
		}
	}
	s.stop()
	s = serve(t, base)
	if status, errs := s.cache(&l, "pins"); status != 0 || len(l.Pins) != 2 || l.Records != n.Records || l.MaxBytes != 32<<20 {
		t.Fatalf("%d: %s %+v", status, errs, l)
	}
	status, out, errs := kvconnd("cache", "pins", "--dir", s.dir)
	if status != 0 || !strings.Contains(out, "a prompt of 4 blocks") || !strings.Contains(out, "all of it") {
		t.Errorf("%d: %s %s", status, out, errs)
	}
	for _, p := range l.Pins {
		if p.Blocks == 0 {
			if status, errs := s.cache(&l, "unpin", p.ID); status != 0 || len(l.Pins) != 1 || l.Records != prompt {
				t.Errorf("%d: %s %+v", status, errs, l)
			}
		}
	}
	if status, errs := s.cache(&l, "unpin", "--model", n.Model, "--tokens", file); status != 0 || len(l.Pins) != 0 || l.Records != 0 {
		t.Errorf("%d: %s %+v", status, errs, l)
	}
}

// After a restart host memory is empty: a warming fills it, and engines find there what they ask for.
func TestCacheWarmsHostMemory(t *testing.T) {
	const length = 6 * demoBlockTokens
	base := t.TempDir()
	s := serve(t, base)
	first, second := promptTokens(1, 0, length), promptTokens(2, 0, length)
	s.complete(1, first, second)
	n := s.namespace()
	s.stop()
	s = serve(t, base)
	var p warm.Progress
	prompt := []string{"warm", "--model", n.Model, "--tokens", tokensFile(t, first)}
	if status, errs := s.cache(&p, prompt...); status != 0 || !p.Done || p.Loaded == 0 || p.Loaded != p.Records || p.Bytes == 0 || p.Truncated {
		t.Fatalf("%d: %s %+v", status, errs, p)
	}
	loaded := p.Loaded
	if status, errs := s.cache(&p, prompt...); status != 0 || p.Loaded != 0 || p.Already != loaded {
		t.Errorf("%d: %s %+v", status, errs, p)
	}
	if status, errs := s.cache(&p, "warm", "--namespace", n.Digest[:16]); status != 0 || p.Already != loaded || p.Loaded != n.Records-loaded {
		t.Errorf("%d: %s %+v; %d records", status, errs, p, n.Records)
	}
	reads := func() string {
		_, out, _ := kvconnd("status", "--dir", s.dir, "--json")
		var st struct{ Store struct{ Reads uint64 } }
		if err := json.Unmarshal([]byte(out), &st); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(st.Store.Reads)
	}
	before := reads()
	if cached := s.complete(1, first, second); cached[0] < length-demoBlockTokens || cached[1] < length-demoBlockTokens {
		t.Errorf("%v tokens are cached", cached)
	}
	if after := reads(); after != before {
		t.Errorf("%s records were read from disk, %s before", after, before)
	}
	if status, errs := s.cache(nil, "warm", "--model", "no such model"); status != 1 || !strings.Contains(errs, "no record and no engine") {
		t.Errorf("%d: %s", status, errs)
	}
}

// Payloads go in and out with a token alone.
func TestCacheExportNeedsAToken(t *testing.T) {
	s := serve(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "kv")
	if status, errs := s.cache(nil, "export", "--model", "m", "--output", file); status != 1 || !strings.Contains(errs, "http_token") {
		t.Errorf("%d: %s", status, errs)
	}
	if status, errs := s.cache(nil, "import", tokensFile(t, promptTokens(1, 0, 4))); status != 1 || !strings.Contains(errs, "http_token") {
		t.Errorf("%d: %s", status, errs)
	}
}

// archivesAllowed has the daemon that is started and the commands share a token.
func archivesAllowed(t *testing.T) {
	t.Helper()
	t.Setenv("KVCONN_HTTP_TOKEN", "a token of this test")
}

// What one node has computed another loads, from a file.
func TestCacheExportsAndImports(t *testing.T) {
	archivesAllowed(t)
	const length = 6 * demoBlockTokens
	s := serve(t, t.TempDir())
	first, second := promptTokens(1, 0, length), promptTokens(2, 0, length)
	s.complete(1, first, second)
	n, file := s.namespace(), filepath.Join(t.TempDir(), "kv")
	var e, i archive.Imported
	export := []string{"export", "--model", n.Model, "--output", file}
	if status, errs := s.cache(&e, export...); status != 0 || e.Records != n.Records || !e.Complete {
		t.Fatalf("%d: %s %+v", status, errs, e)
	}
	if status, errs := s.cache(nil, export...); status != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("%d: %s", status, errs)
	}
	if status, errs := s.cache(nil, "export", "--model", "no such", "--output", file+"2"); status != 1 || !strings.Contains(errs, "no record") {
		t.Errorf("%d: %s", status, errs)
	}
	s.stop()
	other := serve(t, t.TempDir())
	if status, errs := other.cache(&i, "import", file); status != 0 || i.Records != n.Records {
		t.Fatalf("%d: %s %+v", status, errs, i)
	}
	if got := other.namespace(); got.Digest != n.Digest || got.Records != n.Records || got.Bytes != n.Bytes {
		t.Errorf("%+v, was %+v", got, n)
	}
	if cached := other.complete(1, first, second); cached[0] < length-demoBlockTokens || cached[1] < length-demoBlockTokens {
		t.Errorf("%v tokens are cached", cached)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, errs := other.cache(nil, "import", file); status != 1 || !strings.Contains(errs, "damaged: 1 record") && !strings.Contains(errs, "damaged: 0 records") {
		t.Errorf("%d: %s", status, errs)
	}
	if status, errs := other.cache(nil, "import", tokensFile(t, first)); status != 1 || !strings.Contains(errs, "no archive") {
		t.Errorf("%d: %s", status, errs)
	}
}

// flipBits flips bits of about one record of a store.
func flipBits(t *testing.T, dir string) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "segments", "*.kv"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	for _, path := range segments {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		for at := int64(32 << 10); at < 80<<10; at += 4 << 10 { // about a record
			if _, err := f.ReadAt(b, at); err != nil {
				break
			}
			b[0] ^= 1
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What is damaged on disk is not exported, and the command says so.
func TestCacheExportLeavesDamagedRecordsOut(t *testing.T) {
	archivesAllowed(t)
	const length = 6 * demoBlockTokens
	s := serve(t, t.TempDir())
	s.complete(1, promptTokens(1, 0, length))
	n, file := s.namespace(), filepath.Join(t.TempDir(), "kv")
	flipBits(t, s.dir)
	if status, errs := s.cache(nil, "export", "--model", n.Model, "--output", file); status != 1 || !strings.Contains(errs, "damaged, and are not in the file") {
		t.Errorf("%d: %s", status, errs)
	}
	var i archive.Imported
	if status, errs := s.cache(&i, "import", file); status != 0 || i.Records == 0 || i.Records >= n.Records {
		t.Errorf("%d: %s %+v of %d records", status, errs, i, n.Records)
	}
}

// An archive is not sealed: that of a sealed store has to be asked for, and what goes into one is sealed there.
func TestCacheExportOfASealedStore(t *testing.T) {
	archivesAllowed(t)
	const length = 6 * demoBlockTokens
	key, file := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "kv")
	if status, _, errs := kvconnd("key", "new", key); status != 0 {
		t.Fatal(errs)
	}
	s := serve(t, t.TempDir(), "--key-file", key)
	s.complete(1, promptTokens(1, 0, length))
	n := s.namespace()
	export := []string{"export", "--namespace", n.Digest[:16], "--output", file}
	if status, errs := s.cache(nil, export...); status != 1 || !strings.Contains(errs, "sealed") {
		t.Errorf("%d: %s", status, errs)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written")
	}
	var e, i archive.Imported
	if status, errs := s.cache(&e, append(export, "--unsealed")...); status != 0 || e.Records != n.Records {
		t.Fatalf("%d: %s %+v, %d records\n%s", status, errs, e, n.Records, s.log)
	}
	s.stop()
	other := serve(t, t.TempDir(), "--key-file", key)
	if status, errs := other.cache(&i, "import", file); status != 0 || i.Records != n.Records {
		t.Fatalf("%d: %s %+v\n%s", status, errs, i, other.log)
	}
	if got := other.namespace(); got.Records != n.Records {
		t.Errorf("%d records, %d in the other store", got.Records, n.Records)
	}
	if cached := other.complete(1, promptTokens(1, 0, length)); cached[0] < length-demoBlockTokens {
		t.Errorf("%v tokens are cached", cached)
	}
}
