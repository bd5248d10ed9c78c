package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/explain"
)

// cacheCommand is ask of `kvconnd cache`.
func (n *node) cacheCommand(args ...string) (out string, err error) {
	n.t.Helper()
	return n.ask(append([]string{"cache"}, args...)...)
}

// ask runs a command of kvconnd for the node's daemon and returns what it prints.
func (n *node) ask(args ...string) (out string, err error) {
	n.t.Helper()
	path, err := daemonBinary()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.CommandContext(n.t.Context(), path, append(args, "--dir", n.dir)...)
	cmd.Env = daemonEnviron()
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// held asks for the namespaces.
func (n *node) held() []admin.Namespace {
	n.t.Helper()
	out, err := n.cacheCommand("ls", "--json")
	var l admin.List
	if err == nil {
		err = json.Unmarshal([]byte(out), &l)
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return l.Namespaces
}

// What was removed is gone from disk and host memory and stays gone, though the daemon is killed right after the answer.
// The engine goes on with the same answers, and what it saves afterwards is found.
func TestWhatWasRemovedStaysGone(t *testing.T) {
	t.Parallel()
	ps := prompts(70, 3)
	want := reference(t, nil, ps)
	n := newMemoryNode(t)
	n.start()
	e := newInstance(t, n, nil)
	same(t, "first run", e.run("first", ps), want)
	n.saved()
	model := e.Manifest().Model
	list := n.held()
	if len(list) != 1 || list[0].Model != model || list[0].Records == 0 || list[0].Sessions == 0 || list[0].BlockSize != e.Manifest().BlockSize {
		t.Fatalf("%+v", list)
	}
	if out, err := n.cacheCommand("rm", "--model", model); err == nil || !strings.Contains(out, fmt.Sprintf("%d records", list[0].Records)) {
		t.Errorf("without --yes: %v\n%s", err, out)
	}
	if out, err := n.cacheCommand("rm", "--model", model, "--dry-run"); err != nil || n.status().Store.Records != list[0].Records {
		t.Errorf("--dry-run: %v\n%s", err, out)
	}
	out, err := n.cacheCommand("rm", "--model", model, "--yes")
	if err != nil || !strings.Contains(out, fmt.Sprintf("removed: %d records", list[0].Records)) {
		t.Fatalf("%v\n%s", err, out)
	}
	if s := n.status(); s.Store.Records != 0 || s.Host.Records != 0 || s.Store.Purged != uint64(list[0].Records) {
		t.Errorf("%d records on disk, %d in host memory, %d counted", s.Store.Records, s.Host.Records, s.Store.Purged)
	}
	n.kill()
	n.start()
	if s := n.status(); s.Store.Records != 0 {
		t.Errorf("%d records are back", s.Store.Records)
	}
	again := e.run("again", ps)
	same(t, "after the removal", again, want)
	if c := cached(again); c != 0 {
		t.Errorf("%d tokens from an empty cache", c)
	}
	n.saved()
	more := e.run("more", ps)
	same(t, "saved again", more, want)
	if cached(more) == 0 {
		t.Error("what was saved after the removal is not found")
	}
}

// Removals while engines of every kind load and save change no token.
func TestRemovalsBesideEnginesAtWork(t *testing.T) {
	t.Parallel()
	for i, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			if !long() && i%3 != 0 {
				t.Skip("KVCONN_TEST_LONG=1 runs it")
			}
			ps := prompts(71, 4)
			want := reference(t, v.change, ps)
			n := newMemoryNode(t)
			n.start()
			e := newInstance(t, n, v.change)
			stop, ended := make(chan struct{}), make(chan int64)
			go func() {
				removed := int64(0)
				defer func() { ended <- removed }()
				for {
					before := n.status().Store.Purged
					if out, err := n.cacheCommand("rm", "--all", "--yes"); err != nil {
						t.Errorf("%v\n%s", err, out)
					}
					removed += int64(n.status().Store.Purged - before)
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			for round := range 12 {
				same(t, fmt.Sprint("round ", round), e.run(fmt.Sprint("round ", round), ps), want)
			}
			close(stop)
			if removed := <-ended; removed == 0 {
				t.Error("nothing was removed: the test does not test it")
			}
			n.wait("a hit after the last removal", func() bool {
				got := e.run("afterwards", ps)
				same(t, "afterwards", got, want)
				n.saved()
				return cached(got) > 0
			})
		})
	}
}

// What an engine has saved is explained as what it is offered.
func TestAPromptIsExplainedAsItIsOffered(t *testing.T) {
	t.Parallel()
	ps := prompts(72, 2)
	n := newMemoryNode(t)
	n.start()
	e := newInstance(t, n, nil)
	e.run("first", ps[:1])
	n.saved()
	for i, p := range ps {
		tokens, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, tokens, 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := n.ask("explain", "--model", e.Manifest().Model, "--tokens", file, "--json")
		var a explain.Answer
		if err == nil {
			err = json.Unmarshal([]byte(text), &a)
		}
		if err != nil || len(a.Namespaces) != 1 || a.Namespaces[0].Digest != a.Reference {
			t.Fatalf("%v\n%s", err, text)
		}
		same := a.Namespaces[0].Stored * a.Namespaces[0].BlockSize
		got := e.run(fmt.Sprint("explained ", i), ps[i:i+1])[0]
		if offered := (len(p) - 1) / a.Namespaces[0].BlockSize * a.Namespaces[0].BlockSize; min(same, offered) != got.CachedTokens {
			t.Errorf("prompt %d: %d tokens are stored, %d were loaded\n%s", i, same, got.CachedTokens, text)
		}
		n.saved()
	}
}
