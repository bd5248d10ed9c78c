package cache

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/admin"
)

// fakeDaemon answers with h.
func fakeDaemon(t *testing.T, h http.HandlerFunc) *client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return &client{base: s.URL, http: s.Client()}
}

func someNamespaces() *admin.List {
	used := time.Now().Add(-5*time.Minute - time.Second)
	return &admin.List{Namespaces: []admin.Namespace{
		{Digest: strings.Repeat("a1", 32), Model: "m", Engine: "vllm/0.32.0", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 2, PipelineParallel: 1, Records: 5, Bytes: 5 << 20, Sessions: 3, Hits: 9, LastUse: &used},
		{Digest: strings.Repeat("a2", 32), Model: "m", Engine: "vllm/0.31.0", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 1, PipelineParallel: 1, Records: 2, Bytes: 2 << 20},
		{Digest: strings.Repeat("b1", 32), Model: "n\x1b[2J\t", Engine: "e\n", Records: 1, Bytes: 1},
		{Digest: strings.Repeat("c1", 32)},
	}}
}

func TestTheListShowsModelsAndNamespaces(t *testing.T) {
	var out strings.Builder
	if err := printList(&out, someNamespaces().Namespaces); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range [][]string{
		{"MODEL"}, {"m", "7", "7MiB", "9", "5m", "ago", "yes"}, {"a1a1a1a1a1a1", "5", "5MiB", "9", "5m", "ago", "yes", "vllm/0.32.0", "bfloat16", "16", "2", "1"}, {"a2a2a2a2a2a2", "2", "2MiB", "0", "-", "no"},
		{"n?[2J?", "1"}, {"b1b1b1b1b1b1"}, {"(manifest", "lost)", "0"}, {"c1c1c1c1c1c1"},
	} {
		got := strings.Fields(lines[i])
		if len(lines) != 8 || strings.Join(got[:len(want)], " ") != strings.Join(want, " ") && i > 0 {
			t.Errorf("line %d: %q, want %q", i, got, want)
		}
	}
	if strings.ContainsRune(out.String(), 0x1b) {
		t.Error("a name reaches the terminal as it is")
	}
}

func TestRefusalsAreShown(t *testing.T) {
	for code, want := range map[int]string{http.StatusForbidden: "not from here", http.StatusNotFound: "older", http.StatusServiceUnavailable: "not from here"} {
		c := fakeDaemon(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not from here", code) })
		if _, err := c.namespaces(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", code, err, want)
		}
	}
	c := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/namespaces" {
			_ = json.NewEncoder(w).Encode(someNamespaces())
		}
	})
	if l, err := c.namespaces(t.Context()); err != nil || len(l.Namespaces) != 4 {
		t.Errorf("%v, %v", l, err)
	}
}
