package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// tenants asks for the tenants, by name or else digest.
func (n *node) tenants() map[string]admin.Tenant {
	n.t.Helper()
	out, err := n.cacheCommand("ls", "--tenants", "--json")
	var l admin.TenantList
	if err == nil {
		err = json.Unmarshal([]byte(out), &l)
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	of := make(map[string]admin.Tenant)
	for _, t := range l.Tenants {
		if t.Name == "" {
			t.Name = t.Digest
		}
		of[t.Name] = t
	}
	return of
}

// runAs runs prompts of a tenant.
func (i *instance) runAs(salt, id string, prompts [][]uint32) []engine.Result {
	i.t.Helper()
	requests := make([]engine.Request, len(prompts))
	for k, p := range prompts {
		requests[k] = engine.Request{ID: fmt.Sprint(id, k), Prompt: p, MaxTokens: 4}
		requests[k].Scope.Salt = salt
	}
	results, err := i.Run(i.t.Context(), requests)
	if err != nil {
		i.t.Fatal(err)
	}
	return results
}

// writeFile writes a file of a test and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A tenant is listed under its name, its records go and stay gone, and those of others stay.
func TestATenantsRecordsAreListedAndRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	salt := writeFile(t, dir, "a.salt", "salt of a\n")
	file := writeFile(t, dir, "tenants.yaml", "tenants:\n  - {name: team a, cache_salt_file: a.salt}\n  - {name: idle, digest: \"0123456789abcdef\"}\n")
	n := newMemoryNode(t, "--tenants-file", file)
	n.start()
	ps := prompts(73, 2)
	e := newInstance(t, n, nil)
	for k, salt := range []string{"salt of a", "salt of b", ""} {
		e.runAs(salt, fmt.Sprint("first ", k), ps)
	}
	n.saved()
	if c := cached(e.runAs("salt of b", "hit", ps)); c == 0 {
		t.Error("b has no hit")
	}
	n.saved()
	b := tenants.Of(connector.Scope{Salt: "salt of b"}.Digest()).String()
	before := n.tenants()
	of := n.status().Store.Records
	if a := before["team a"]; len(before) != 4 || a.Records == 0 || a.Records+before[b].Records+before["0000000000000000"].Records != of || before[b].Hits == 0 || before["idle"].Records != 0 {
		t.Fatalf("%+v", before)
	}
	if used := n.held()[0]; used.Hits == 0 || used.LastUse == nil {
		t.Errorf("%+v", used)
	}
	if out, err := n.cacheCommand("rm", "--tenant", "team a", "--dry-run"); err != nil || n.status().Store.Records != of || !strings.Contains(out, fmt.Sprint(before["team a"].Records, " records")) {
		t.Errorf("--dry-run: %v\n%s", err, out)
	}
	if out, err := n.cacheCommand("rm", "--cache-salt-file", salt, "--yes"); err != nil || !strings.Contains(out, fmt.Sprintf("removed: %d records", before["team a"].Records)) {
		t.Fatalf("%v\n%s", err, out)
	}
	n.kill()
	n.start()
	after := n.tenants()
	if after["team a"].Records != 0 || after[b].Records != before[b].Records {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if c := cached(e.runAs("salt of a", "again", ps)); c != 0 {
		t.Errorf("a was offered %d tokens of what was removed", c)
	}
	if c := cached(e.runAs("salt of b", "again b", ps)); c == 0 {
		t.Error("b has lost its records")
	}
}

// A tenant never has more on disk than its quota, however much its engines save, and takes nothing from others.
func TestATenantStaysWithinItsQuota(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	dir := t.TempDir()
	writeFile(t, dir, "a.salt", "salt of a")
	file := writeFile(t, dir, "tenants.yaml", "tenants:\n  - {name: a, cache_salt_file: a.salt, max_bytes: 1MiB}\n")
	n := newMemoryNode(t, "--tenants-file", file)
	n.start()
	e := newInstance(t, n, nil)
	ps := prompts(74, 2)
	e.runAs("salt of b", "b", ps)
	n.saved()
	b := tenants.Of(connector.Scope{Salt: "salt of b"}.Digest()).String()
	before := n.tenants()[b]
	for round := 0; n.status().Store.Quota.Evicted == 0; round++ {
		e.runAs("salt of a", fmt.Sprint("round ", round), prompts(1000+round, 4))
		n.saved()
		if a := n.tenants()["a"]; a.Bytes > most || a.MaxBytes != most {
			t.Fatalf("round %d: %+v", round, a)
		}
		if round == 200 {
			t.Fatalf("the quota is not reached: %+v", n.tenants())
		}
	}
	last := prompts(5000, 1)
	e.runAs("salt of a", "last", last)
	n.saved()
	if c := cached(e.runAs("salt of a", "last again", last)); c == 0 {
		t.Error("what a saved last is not found")
	}
	n.saved()
	if after := n.tenants(); after["a"].Bytes > most || after[b].Records != before.Records {
		t.Errorf("b had %+v, now %+v", before, after)
	}
	if s := n.status().Store; s.Quota.Refused != 0 || s.Evicted != 0 {
		t.Errorf("%d saves refused, %d records evicted for the cap", s.Quota.Refused, s.Evicted)
	}
	n.kill()
	n.start()
	n.wait("the quota holds after a kill", func() bool { return n.tenants()["a"].Bytes <= most })
	if c := cached(e.runAs("salt of b", "b again", ps)); c == 0 {
		t.Error("b has lost its records")
	}
}

// rewrite gives the tenants file another content and has the daemon read it again.
func (n *node) rewrite(file, text string) {
	n.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		n.t.Fatal(err)
	}
}

// A hangup has the file read again: names and quotas count at once, and a file with an error changes nothing.
func TestTheTenantsFileIsReadAgainOnAHangup(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	dir := t.TempDir()
	writeFile(t, dir, "a.salt", "salt of a")
	writeFile(t, dir, "b.salt", "salt of b")
	file := writeFile(t, dir, "tenants.yaml", "tenants:\n  - {name: a, cache_salt_file: a.salt}\n")
	n := newMemoryNode(t, "--tenants-file", file)
	n.start()
	e := newInstance(t, n, nil)
	ps := prompts(75, 2)
	e.runAs("salt of b", "b", ps)
	for round := 0; n.tenants()["a"].Bytes <= 2*most; round++ {
		e.runAs("salt of a", fmt.Sprint("round ", round), prompts(2000+round, 4))
		n.saved()
	}
	b := tenants.Of(connector.Scope{Salt: "salt of b"}.Digest()).String()
	before := n.tenants()[b]

	n.rewrite(file, "tenants:\n  - {name: b, cache_salt_file: b.salt}\n  - {name: a, cache_salt_file: a.salt, max_bytes: 1MiB}\n")
	n.wait("a has no more than its new quota", func() bool {
		a := n.tenants()["a"]
		return a.MaxBytes == most && a.Bytes <= most
	})
	if after := n.tenants()["b"]; after.Records != before.Records || after.MaxBytes != 0 {
		t.Errorf("b had %+v, now %+v", before, after)
	}
	for round := range 4 { // and it stays within it
		e.runAs("salt of a", fmt.Sprint("more ", round), prompts(3000+round, 4))
		n.saved()
		if a := n.tenants()["a"]; a.Bytes > most {
			t.Errorf("round %d: %+v", round, a)
		}
	}
	if s := n.status().Store; s.Quota.Refused != 0 || s.Evicted != 0 {
		t.Errorf("%d saves refused, %d records evicted for the cap", s.Quota.Refused, s.Evicted)
	}

	n.rewrite(file, "tenants:\n  - {name: b, cache_salt_file: b.salt}\n  - {name: a, cache_salt_file: a.salt, max_bytes: 12}\n")
	n.wait("a warning that says where the error is", func() bool {
		for line := range strings.Lines(n.log.String()) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, file) && strings.Contains(line, "line 3") && strings.Contains(line, "remedy=") {
				return true
			}
		}
		return false
	})
	if now := n.tenants(); now["a"].MaxBytes != most || now["b"].Records != before.Records {
		t.Errorf("after a file with an error: %+v", now)
	}
	if strings.Contains(n.log.String(), "salt of") {
		t.Error("a salt is in the log")
	}

	n.rewrite(file, "tenants:\n  - {name: team a, cache_salt_file: a.salt}\n")
	n.wait("a has another name and no quota", func() bool {
		now := n.tenants()
		_, named := now["b"]
		return now["team a"].Records > 0 && now["team a"].MaxBytes == 0 && !named
	})
	for round := 0; n.tenants()["team a"].Bytes <= 2*most; round++ {
		e.runAs("salt of a", fmt.Sprint("again ", round), prompts(4000+round, 4))
		n.saved()
	}
}
