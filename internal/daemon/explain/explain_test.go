package explain

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/store"
)

// level has some keys of some shards.
type level struct {
	name  string
	speed store.Speed
	has   map[connector.NamespaceDigest]map[connector.Shard]map[connector.Key]bool
}

func (l *level) Name() string { return l.name }
func (l *level) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	for i, k := range keys {
		at[i] = at[i] || l.has[ns][shard][k]
	}
}
func (l *level) Speed() store.Speed { return l.speed }
func (l *level) Usage() store.Usage { return store.Usage{} }

func (l *level) put(m *connector.Manifest, shard connector.Shard, keys ...connector.Key) {
	ns := m.Digest()
	if l.has[ns] == nil {
		l.has[ns] = make(map[connector.Shard]map[connector.Key]bool)
	}
	if l.has[ns][shard] == nil {
		l.has[ns][shard] = make(map[connector.Key]bool)
	}
	for _, k := range keys {
		l.has[ns][shard][k] = true
	}
}

func newLevel(name string, v store.Speed) *level {
	return &level{name, v, make(map[connector.NamespaceDigest]map[connector.Shard]map[connector.Key]bool)}
}

func TestAPromptIsExplained(t *testing.T) {
	const blockSize, payload = 4, 1000
	change := func(f func(*connector.Manifest)) *connector.Manifest {
		return manifests.New(func(m *connector.Manifest) {
			m.Model, m.BlockSize, m.TensorParallel = "m", blockSize, 2
			if f != nil {
				f(m)
			}
		})
	}
	mine := change(nil)
	older := change(func(m *connector.Manifest) { m.Engine = "vllm/0.31.0"; m.Extra = map[string]string{"backend": "x"} })
	keyed := change(func(m *connector.Manifest) { m.KeyScheme = connector.KeySchemeEngine })
	other := change(func(m *connector.Manifest) { m.Model = "other" })
	tokens := make([]uint32, 10*blockSize+3)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	q := &Request{Model: "m", Tokens: tokens, Salt: "s"}
	keys := q.Keys(blockSize)
	host, disk := newLevel("host", store.Speed{BytesPerS: 1000, PerRank: true}), newLevel("disk", store.Speed{BytesPerS: 500, LatencyS: 1, QueuedBytes: 600, AheadBytes: 100})
	for shard := range connector.Shard(2) {
		host.put(mine, shard, keys[0], keys[1])
		disk.put(mine, shard, keys[:6]...)
		disk.put(mine, shard, keys[8])
		disk.put(older, shard, keys...)
	}
	disk.put(mine, 0, keys[6]) // the other shard is missing
	s := &Source{
		Levels: []store.Level{host, disk}, PayloadBytes: func(connector.NamespaceDigest, connector.Shard) int { return payload },
		Namespaces: func() (list []store.NamespaceInfo) {
			for _, m := range []*connector.Manifest{older, mine, keyed, other} {
				list = append(list, store.NamespaceInfo{Digest: m.Digest(), Manifest: m.Canonical()})
			}
			return append(list, store.NamespaceInfo{Digest: connector.NamespaceDigest{1}}) // its manifest is lost
		},
		Newest: func(model string) Engine { return Engine{mine, 4} },
	}
	a, err := s.Explain(t.Context(), q)
	if err != nil || len(a.Namespaces) != 3 || a.Reference != mine.Digest().String() || a.Tokens != len(tokens) || a.More != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	n := a.Namespaces[0]
	// host: 2 blocks of one shard at 1000 a second; disk: a second, and 500 queued and 4 blocks of both shards at 500 a second.
	if n.Digest != a.Reference || len(n.Differences) != 0 || n.Blocks != 10 || n.Stored != 6 || n.Later != 1 || n.LoadS != 2+1+17 || n.PrefillS != 6 {
		t.Errorf("%+v", n)
	}
	if len(n.Tiers) != 2 || n.Tiers[0] != (Tier{"host", 2, 4000}) || n.Tiers[1] != (Tier{"disk", 4, 8000}) {
		t.Errorf("%+v", n.Tiers)
	}
	n = a.Namespaces[1]
	if n.Digest != older.Digest().String() || n.Stored != 10 || n.Later != 0 || len(n.Differences) != 2 ||
		n.Differences[0].Field != "engine" || !strings.Contains(n.Differences[0].Here, "0.31.0") || n.Differences[1] != (Difference{"extra.backend", "x", ""}) {
		t.Errorf("%+v", n)
	}
	if n = a.Namespaces[2]; !n.OwnKeys || n.Stored != 0 {
		t.Errorf("%+v", n)
	}
	q.Salt = "" // another tenant's
	if a, err = s.Explain(t.Context(), q); err != nil || a.Namespaces[0].Stored != 0 || a.Namespaces[0].Later != 0 || a.Namespaces[0].LoadS != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	s.Newest = func(string) Engine { return Engine{} }
	if a, err = s.Explain(t.Context(), q); err != nil || a.Reference != "" || len(a.Namespaces) != 3 || len(a.Namespaces[0].Differences) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestLayersWithAWindowDoNotSayWhatIsStored(t *testing.T) {
	full, window := manifests.New().Groups[0], manifests.New().Groups[0]
	window.Window = 64
	both := manifests.New(func(m *connector.Manifest) { m.Groups = []connector.Group{full, window} })
	only := manifests.New(func(m *connector.Manifest) { m.Groups = []connector.Group{window} })
	if got := shardsOf(both); len(got) != len(both.GroupShards(0)) {
		t.Errorf("%v", got)
	}
	if got := shardsOf(only); len(got) != len(only.GroupShards(0)) {
		t.Errorf("%v", got)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s := &Source{Namespaces: func() []store.NamespaceInfo { return nil }, Newest: func(string) Engine { return Engine{} }}
	h := Handler(s)
	for body, want := range map[string]int{
		`{"model":"m","tokens":[1,2]}`: 200, `{"model":"m"}`: 200, `{"tokens":[1]}`: 400, `{"model":"m","tokens":[-1]}`: 400, ``: 400, `{"model":"m","token":[1]}`: 400,
		`{"model":"m","tokens":[` + strings.Repeat("1,", prompt.MaxTokens) + `1]}`:  400,
		`{"model":"` + strings.Repeat("x", prompt.MaxBodyBytes) + `","tokens":[1]}`: 400,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/explain", strings.NewReader(body)))
		if w.Code != want || want == 200 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%.40s: %d %s", body, w.Code, w.Body)
		}
	}
}
