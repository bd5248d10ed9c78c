package discover

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
)

// at are the ranks by host, with their ids and URLs.
func (f found) at() map[string]info {
	list := make(map[string]info)
	for _, r := range f.Ranks() {
		list[strings.TrimSuffix(strings.TrimPrefix(r.Endpoint, "http://"), ":1")] = r
	}
	return list
}

// place routes a request to a rank.
func (f found) place(id int32) (handle uint64) {
	f.t.Helper()
	var d route.Decision
	req := route.Request{Model: "m", Prompt: []uint32{1, 2, 3}, Request: policy.Request{Pin: id, Strict: true}}
	if err := f.Route(f.t.Context(), &req, &d); err != nil || d.Rank != id {
		f.t.Fatal(d, err)
	}
	return d.Handle
}

// sharing is the text of a file with ranks that share a node and a bucket.
func sharing(hosts string, version int) string {
	text := "ranks:\n"
	for _, h := range hosts {
		text += fmt.Sprintf("  - {model: m, endpoint: 'http://%c:1', node: n, node_url: 'http://n:%d', bucket: b, bucket_url: 'http://b:%d'}\n", h, version, version)
	}
	return text
}

// All ranks of a node stay ranks while its URL changes, and so do their requests.
func TestRanksStayWhileTheURLTheyShareChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, sharing("abcd", 1))
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1", "http://c:1", "http://d:1")
	before := f.at()
	f.place(before["b"].ID)
	leaves := f.place(before["d"].ID)
	write(t, path, sharing("abc", 2)) // d leaves at the same time, with a request
	wait.For(t, "the other URLs", func() bool {
		list := f.Ranks()
		for _, r := range before {
			if _, ok := f.Router.Rank(r.ID); !ok {
				t.Fatalf("%s was removed", r.Endpoint)
			}
		}
		return len(list) == 4 && !slices.ContainsFunc(list, func(r info) bool { return r.NodeURL != "http://n:2" || r.BucketURL != "http://b:2" })
	})
	f.wants("http://a:1", "http://b:1", "http://c:1", "http://d:1 draining")
	if n := f.at()["b"].Load.ActiveRequests; n != 1 {
		t.Errorf("%d requests", n)
	}
	if !f.Finish(leaves) {
		t.Error("the request of the rank that leaves was forgotten")
	}
	f.wants("http://a:1", "http://b:1", "http://c:1")
	wait.For(t, "three ranks, none of them refused or leaving", func() bool { s := f.Discovery.Stats(); return s.Refused == 0 && s.Ranks == 3 && s.Leaving == 0 })
}

// A rank that the router will not have another way stays, and gets no requests if it is found draining.
func TestAChangeThatIsRefusedLeavesARankAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, sharing("ab", 1))
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	before := f.at()
	f.place(before["a"].ID)
	refused := func(n int) {
		t.Helper()
		wait.For(t, "refusals", func() bool { return f.Discovery.Stats().Refused == n })
	}
	write(t, path, strings.Replace(sharing("ab", 1), "http://n:1", "http://n:2", 1)) // two URLs of one node
	refused(1)
	f.wants("http://a:1", "http://b:1")
	if a := f.at()["a"]; a.ID != before["a"].ID || a.NodeURL != "http://n:1" || a.Load.ActiveRequests != 1 {
		t.Errorf("%+v", a)
	}
	write(t, path, strings.Replace(sharing("ab", 1), "http://n:1'", "http://n:2', draining: true", 1))
	f.wants("http://a:1 draining", "http://b:1")
	refused(1)
	write(t, path, sharing("ab", 1))
	f.wants("http://a:1", "http://b:1")
	refused(0)
	// Another rank has the name that one is to have. The others change all the same.
	text := strings.Replace(sharing("abc", 1), "model: m,", "model: m, adapters: [other],", 1) + "  - {model: other, endpoint: 'http://d:1'}\n"
	write(t, path, strings.Replace(text, "model: m, adapters: [other],", "model: m,", 1))
	f.wants("http://a:1", "http://b:1", "http://c:1", "http://d:1")
	write(t, path, strings.ReplaceAll(text, "endpoint: 'http://b:1'", "max_active: 7, endpoint: 'http://b:1'"))
	wait.For(t, "a change", func() bool { return f.at()["b"].MaxActive == 7 })
	refused(1)
	for host, r := range before {
		if f.at()[host].ID != r.ID {
			t.Errorf("%s was removed", host)
		}
	}
}

// One rank of a node is described in a way that the router refuses while the node's URL changes. The node moves all the same.
func TestANodeMovesThoughOneOfItsRanksIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	other := "  - {model: o, endpoint: 'http://o:1', adapters: [taken]}\n"
	write(t, path, sharing("abc", 1)+other)
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1", "http://c:1", "http://o:1")
	before := f.at()
	handle := f.place(before["b"].ID)
	text := strings.Replace(sharing("abc", 2), "'http://b:1', node", "'http://b:1', adapters: [taken], node", 1)
	text = strings.Replace(text, "'http://c:1', node", "'http://c:1', max_active: 7, node", 1)
	write(t, path, text+other)
	moved := func(version int) bool {
		now := f.at()
		for _, h := range []string{"a", "b", "c"} {
			if r := now[h]; r.NodeURL != fmt.Sprintf("http://n:%d", version) || r.BucketURL != fmt.Sprintf("http://b:%d", version) || r.ID != before[h].ID {
				return false
			}
		}
		return true
	}
	wait.For(t, "the other URLs", func() bool { return moved(2) && f.at()["c"].MaxActive == 7 && f.Discovery.Stats().Refused == 1 })
	if b := f.at()["b"]; len(b.Adapters) != 0 || !f.Finish(handle) {
		t.Errorf("what was refused: %+v", b)
	}
	// It goes on moving, and the refused one is taken once it fits.
	write(t, path, strings.ReplaceAll(strings.ReplaceAll(text, "n:2", "n:3"), "b:2", "b:3")+other)
	wait.For(t, "the next URLs", func() bool { return moved(3) && f.Discovery.Stats().Refused == 1 })
	write(t, path, strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(text, "n:2", "n:3"), "b:2", "b:3"), "taken", "mine")+other)
	wait.For(t, "no refusal", func() bool { return f.Discovery.Stats().Refused == 0 && len(f.at()["b"].Adapters) == 1 })
}

// Two URLs of one node in one list are a mistake: its ranks stay where they are.
func TestTwoURLsOfOneNodeMoveNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	write(t, path, sharing("ab", 1))
	f := discover(t, nil, Source{File: path, Interval: fast})
	f.wants("http://a:1", "http://b:1")
	write(t, path, sharing("a", 2)+strings.TrimPrefix(sharing("b", 3), "ranks:\n"))
	wait.For(t, "refusals", func() bool { return f.Discovery.Stats().Refused == 2 })
	for _, r := range f.Ranks() {
		if r.NodeURL != "http://n:1" || r.BucketURL != "http://b:1" {
			t.Errorf("%+v", r.Rank)
		}
	}
}
