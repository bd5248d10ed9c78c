package discover

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/registry"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ranksAt is the text of a file with a rank at each host.
func ranksAt(hosts string) string {
	text := "ranks:\n"
	for _, h := range hosts {
		text += "  - {model: m, endpoint: 'http://" + string(unicode.ToLower(h)) + ":1'}\n"
	}
	return text
}

func TestAFileIsReadAgainHoweverItIsChanged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ranks.yaml")
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.fails(1) // the file is not there yet
	wait.For(t, "a source that fails, and why", func() bool {
		s := f.Discovery.Stats()
		return s.Failing == 1 && len(s.Why) == 1 && strings.Contains(s.Why[0], path)
	})
	write(t, path, ranksAt("a"))
	f.wants("http://a:1")
	wait.For(t, "no failing source", func() bool { return f.Discovery.Stats().Failing == 0 })

	// Another file takes its place.
	write(t, filepath.Join(dir, "new"), ranksAt("ab"))
	if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
		t.Fatal(err)
	}
	f.wants("http://a:1", "http://b:1")

	// The same size at the same time.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, ranksAt("ac"))
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	f.wants("http://a:1", "http://c:1")

	// It goes, and comes back.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.fails(2)
	f.wants("http://a:1", "http://c:1")
	write(t, path, ranksAt("ac"))
	wait.For(t, "no failing source", func() bool { return f.Discovery.Stats().Failing == 0 })
	write(t, path, "ranks: []\n")
	f.wants()
}

// Kubernetes changes the files of a ConfigMap by swapping a link to their folder.
func TestTheFilesOfAConfigMapAreFollowed(t *testing.T) {
	dir := t.TempDir()
	version := func(name, hosts string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "ranks.yaml"), ranksAt(hosts))
		link := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(name, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "ab")
	if err := os.Symlink("..data/ranks.yaml", filepath.Join(dir, "ranks.yaml")); err != nil {
		t.Fatal(err)
	}
	f := discover(t, nil, Source{File: filepath.Join(dir, "ranks.yaml"), Interval: fast})
	f.wants("http://a:1", "http://b:1")
	version("..2", "bc")
	if err := os.RemoveAll(filepath.Join(dir, "..1")); err != nil {
		t.Fatal(err)
	}
	f.wants("http://b:1", "http://c:1")
}

func TestBadContentKeepsTheOldRanks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, ranksAt("ab"))
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	for _, bad := range []string{
		"", "ranks:\n", "# nothing\n", "ranks: {}\n", "ranks: [1]\n", ranksAt("a") + "  - {", ranksAt("a") + "more: 1\n", ranksAt("a") + "---\n" + ranksAt("b"),
		"ranks: [{model: m}]\n", "ranks: [{model: m, endpoint: 'http://a:1', modle: x}]\n", ranksAt("aa"), "\x00\xff", strings.Repeat("#", maxFileBytes+1),
	} {
		write(t, path, bad)
		f.fails(2)
		f.wants("http://a:1", "http://b:1")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f.fails(2)
	f.wants("http://a:1", "http://b:1")
	// Nobody writes to this pipe: neither a read nor the stop waits for it.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f.fails(2)
	f.wants("http://a:1", "http://b:1")
}

// What changes of a rank changes in place; what all ranks of its model have in common makes it another one.
func TestRanksChangeAsTheirDescriptionDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	text := "ranks:\n  - {id: 3, model: m, endpoint: 'http://a:1', max_active: 1}\n  - {model: m, endpoint: 'http://b:1'}\n"
	write(t, path, text)
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	rank := func(id int32) registry.Rank {
		info, _ := f.Router.Rank(id)
		return info.Rank
	}
	text = strings.Replace(strings.Replace(text, "max_active: 1", "max_active: 9, node: n, node_url: 'http://n:1'", 1), "a:1", "c:1", 1)
	write(t, path, text)
	f.wants("http://b:1", "http://c:1")
	if r := rank(3); r.MaxActive != 9 || r.NodeURL != "http://n:1" {
		t.Errorf("%+v", r)
	}
	text = strings.ReplaceAll(text, "model: m,", "model: m, block_size: 32,")
	write(t, path, text)
	wait.For(t, "another block size", func() bool {
		list := f.Ranks()
		return len(list) == 2 && !slices.ContainsFunc(list, func(r info) bool { return r.BlockSize != 32 })
	})
	// The URL of a node that two ranks share.
	text = strings.Replace(text, "'http://b:1'", "'http://b:1', node: n", 1)
	write(t, path, text)
	wait.For(t, "a shared node", func() bool {
		return !slices.ContainsFunc(f.Ranks(), func(r info) bool { return r.Node != "n" })
	})
	write(t, path, strings.Replace(text, "http://n:1", "http://n:2", 1))
	wait.For(t, "another URL", func() bool {
		list := f.Ranks()
		return len(list) == 2 && rank(3).NodeURL == "http://n:2" && f.Discovery.Stats().Refused == 0
	})
}

// A rank that does not fit the others waits until it does, and harms none.
func TestARankThatDoesNotFitIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, strings.ReplaceAll(ranksAt("a"), "model: m", "model: m, block_size: 16")+"  - {model: m, endpoint: 'http://b:1', block_size: 64}\n")
	f := discover(t, nil, Source{File: path, Interval: fast})
	wait.For(t, "a refusal", func() bool { s := f.Discovery.Stats(); return s.Refused == 1 && s.Ranks == 1 })
	write(t, path, "ranks: [{model: m, endpoint: 'http://b:1', block_size: 64}]\n")
	f.wants("http://b:1")
	wait.For(t, "no refusal", func() bool { return f.Discovery.Stats().Refused == 0 })
	// Somebody removes a rank: it is still found.
	if _, err := f.Remove(f.Ranks()[0].ID); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "a rank that is found again", func() bool { return len(f.Ranks()) == 1 })
}

func TestAFileThatIsBeingWrittenIsNotUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, ranksAt("ab"))
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	text := "ranks:\n"
	write(t, path, text)
	for end := time.Now().Add(5 * settle); time.Now().Before(end); time.Sleep(settle / 20) {
		text += "# more follows\n"
		write(t, path, text)
		if got := f.endpoints(); !slices.Equal(got, []string{"http://a:1", "http://b:1"}) {
			t.Fatalf("%v, but only a part of the file is written", got)
		}
	}
	write(t, path, ranksAt("c"))
	f.wants("http://c:1")
}

// A router beside a daemon gives its node to the ranks of this machine that have none.
func TestRanksWithoutANodeGetTheRouters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	text, here := "ranks:\n", []string{"127.0.0.1", "127.9.9.9", "localhost", "[::1]"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs { // its own addresses, too
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			here = append(here, n.IP.String())
		}
	}
	if name, err := os.Hostname(); err == nil {
		here = append(here, strings.ToUpper(name))
	}
	away := []string{"a.example", "192.0.2.1", "[2001:db8::1]", "localhost.example", "127.0.0.1.example"}
	for _, h := range slices.Concat(here, away) {
		text += "  - {model: m, endpoint: 'http://" + h + ":1'}\n"
	}
	write(t, path, text+"  - {model: m, endpoint: 'http://127.0.0.1:2', node: n, node_url: 'http://n:1'}\n")
	f := discover(t, func(o *Options) { o.Node, o.NodeURL = "local", "http://127.0.0.1:9477" }, Source{File: path, Interval: fast})
	wait.For(t, "ranks", func() bool { return len(f.Ranks()) == len(here)+len(away)+1 })
	for _, r := range f.Ranks() {
		host := strings.TrimSuffix(strings.TrimPrefix(r.Endpoint, "http://"), ":1")
		switch {
		case r.Endpoint == "http://127.0.0.1:2":
			if r.Node != "n" {
				t.Errorf("%+v", r.Rank)
			}
		case slices.Contains(here, host) != (r.Node == "local") || (r.Node == "") != (r.NodeURL == ""):
			t.Errorf("%+v", r.Rank)
		}
	}
}
