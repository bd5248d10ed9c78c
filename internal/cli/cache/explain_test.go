package cache

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/explain"
)

func TestTokensComeFromAFileOrAnEngine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompt")
	if err := os.WriteFile(file, []byte("[1, 2, 300000]"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []uint32{1, 2, 300000}
	if got, err := readTokens(t.Context(), nil, "m", file, ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := readTokens(t.Context(), strings.NewReader("[1,2,300000]"), "m", "-", ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readTokens(t.Context(), strings.NewReader("hello"), "m", "-", ""); err == nil || !strings.Contains(err.Error(), "--engine") {
		t.Errorf("%v", err)
	}
	engine := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Model, Prompt string }
		if r.URL.Path != "/tokenize" || json.NewDecoder(r.Body).Decode(&q) != nil || q.Model != "m" || q.Prompt != "hello" {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte(`{"count":3,"max_model_len":100,"tokens":[1,2,300000]}`))
	})
	if got, err := readTokens(t.Context(), strings.NewReader("hello"), "m", "-", engine.base+"/"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readTokens(t.Context(), strings.NewReader("other"), "m", "-", engine.base+"/"); err == nil || !strings.Contains(err.Error(), "what?") {
		t.Errorf("%v", err)
	}
}

func TestAnExplanationIsPrinted(t *testing.T) {
	a := &explain.Answer{Model: "m", Tokens: 100, Reference: strings.Repeat("a1", 32), Namespaces: []explain.Namespace{
		{Digest: strings.Repeat("a1", 32), Engine: "vllm/2", Blocks: 6, BlockSize: 16, Stored: 2, Later: 3, LoadS: 2, PrefillS: 1, Tiers: []explain.Tier{{Tier: "disk", Blocks: 2, Bytes: 1 << 20}}},
		{Digest: strings.Repeat("b1", 32), Engine: "vllm/1", Blocks: 6, BlockSize: 16, Stored: 6, LoadS: 1, PrefillS: 2, Differences: []explain.Difference{
			{Field: "engine", Here: `"vllm/1"`, Reference: `"vllm/2"`}, {Field: "extra.x\x1b", Here: strings.Repeat("v", 100)}}},
		{Digest: strings.Repeat("c1", 32), Engine: "sglang/1", OwnKeys: true},
	}}
	var out strings.Builder
	if err := printAnswer(&out, a); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"namespace a1a1a1a1a1a1, vllm/2, of the newest engine", "2 of 6 blocks of 16 tokens", "2 on disk, 1MiB", "block 2 is the first that is missing (tokens 32 to 47)",
		"3 later blocks are there", "2s, longer than their computation, 1s", `engine is "vllm/1" here, and "vllm/2" there`, "extra.x? is vvv", "missing there",
		"load would take 1s, their computation 2s", "hashes of their own",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.ContainsRune(out.String(), 0x1b) {
		t.Error("a value reaches the terminal as it is")
	}
	if err := printAnswer(&out, new(explain.Answer)); !errors.Is(err, errNoModel) {
		t.Errorf("%v", err)
	}
}
