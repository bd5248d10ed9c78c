package blockkey

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// golden are prompts that SGLang has hashed: integration/sglang/page_hashes.py makes them.
type golden struct {
	SGLang string
	Cases  []struct {
		Page                  int
		Salt, Adapter, Format string
		Tokens                []uint32
		Hashes                []string
	}
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	b, err := os.ReadFile("testdata/sglang.json")
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Cases) == 0 {
		t.Fatalf("%d cases: %v", len(g.Cases), err)
	}
	return g
}

func TestPageHashesAreSGLangs(t *testing.T) {
	for _, c := range readGolden(t).Cases {
		if c.Adapter != "" {
			continue // only the engine knows the adapter's id
		}
		at := SGLang.Root(c.Page, connector.Scope{Salt: c.Salt})
		var h Hasher
		h.Begin(at)
		keys := h.Append(nil, c.Tokens, c.Page)
		if len(keys) != len(c.Hashes) {
			t.Fatalf("%d keys of %d pages", len(keys), len(c.Hashes))
		}
		for i, hash := range c.Hashes {
			at, _ = at.Next(connector.AppendTokens(nil, c.Tokens[i*c.Page:(i+1)*c.Page]), nil)
			key, tail := at.Key(), at.Tail()
			if got := hex.EncodeToString(key[:]) + hex.EncodeToString(tail[:]); got != hash {
				t.Errorf("page size %d, salt %q, page %d: %s, SGLang has %s", c.Page, c.Salt, i, got, hash)
			}
			if keys[i] != key {
				t.Errorf("page size %d, salt %q, page %d: the hasher has %v, not %v", c.Page, c.Salt, i, keys[i], key)
			}
			if again := SGLang.At(key, tail); again != at {
				t.Errorf("%+v is not %+v", again, at)
			}
		}
	}
}
