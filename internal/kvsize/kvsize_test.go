package kvsize

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestSizesOfKnownModels(t *testing.T) {
	for name, want := range map[string]int64{
		"llama-3.1-8b": 128 << 10, "llama-3.1-70b": 320 << 10, "llama-3.1-405b": 504 << 10, "qwen2.5-7b": 56 << 10, "qwen3-235b-a22b": 188 << 10,
		"deepseek-v3": 70272, "gpt-oss-120b": 72 << 10, "gemma-3-27b": 496 << 10,
	} {
		m, err := ByName(name)
		if err != nil || m.BytesPerToken() != want {
			t.Errorf("%s: %d bytes, want %d; %v", name, m.BytesPerToken(), want, err)
		}
	}
	names := make(map[string]bool)
	for _, m := range Models() {
		if err := m.Validate(); err != nil || names[m.Name] || plain(m.Name) != m.Name {
			t.Errorf("%+v: %v, plain name %q", m, err, plain(m.Name))
		}
		names[m.Name] = true
	}
	m, _ := ByName("gemma-3-4b")
	if m.SlidingBytesPerToken() != 29*2*4*256*2 || !strings.Contains(m.String(), "29 of the layers with a window of 1024 tokens") {
		t.Errorf("%s: %d", m.String(), m.SlidingBytesPerToken())
	}
}

func TestNamesOfRepositoriesAreUnderstood(t *testing.T) {
	for name, want := range map[string]string{
		"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "meta-llama/Meta-Llama-3-70B": "llama-3-70b", "Qwen/Qwen2.5-7B-Instruct-AWQ": "qwen2.5-7b",
		"Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b", "deepseek-ai/DeepSeek-R1-0528": "deepseek-r1", "openai/gpt-oss-20b": "gpt-oss-20b",
		"google/gemma-3-27b-it": "gemma-3-27b", "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b", "zai-org/GLM-4.5-Air": "glm-4.5-air",
	} {
		if m, err := ByName(name); err != nil || m.Name != want {
			t.Errorf("%s: %q, %v", name, m.Name, err)
		}
	}
	if _, err := ByName("llama-3.1-80b"); err == nil || !strings.Contains(err.Error(), `did you mean "llama-3.1-8b"`) || !strings.Contains(err.Error(), "--bytes-per-token") {
		t.Error(err)
	}
	if _, err := ByName("-it"); err == nil {
		t.Error("a name of nothing is a model")
	}
}

// What the table says is what the formula makes of the published configurations.
func TestConfigurationsAreComputed(t *testing.T) {
	pattern := func(n, every int, often, seldom string) string {
		var list []string
		for i := range n {
			kind := often
			if (i+1)%every == 0 {
				kind = seldom
			}
			list = append(list, fmt.Sprintf("%q", kind))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	for name, text := range map[string]string{
		"llama-3.1-8b": `{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}`,
		"qwen2.5-7b":   `{"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "sliding_window": 131072, "use_sliding_window": false, "max_window_layers": 28, "model_type": "qwen2", "torch_dtype": "bfloat16"}`,
		"deepseek-v3":  `{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168, "torch_dtype": "bfloat16"}`,
		"gpt-oss-20b":  `{"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880, "sliding_window": 128, "layer_types": ` + pattern(24, 2, "sliding_attention", "full_attention") + `}`,
		"gemma-3-4b":   `{"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2560, "sliding_window": 1024}}`,
		"gemma-3-27b":  `{"text_config": {"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6}, "dtype": "bfloat16"}`,
	} {
		want, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{path, filepath.Dir(path)} {
			got, err := FromConfig(at)
			if want.Name = path; err != nil || (got.Latent == 0 && got != want) || got.BytesPerToken() != want.BytesPerToken() {
				t.Errorf("%s: %+v, want %+v; %v", name, got, want, err)
			}
		}
	}
	for text, want := range map[string]int64{
		`{"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}`:                                                                                         2 * 12 * 768 * 4,
		`{"num_hidden_layers": 60, "num_attention_heads": 128, "multi_query": true, "head_dim": 64}`:                                                                     2 * 60 * 64 * 2,
		`{"num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64, "layer_types": ["linear_attention","linear_attention","linear_attention","full_attention"]}`: 2 * 8 * 64 * 2,
		`{"num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 64, "sliding_window": 4096}`:                                                                     2 * 2 * 8 * 64 * 2,
	} {
		if m, err := parse([]byte(text)); err != nil || m.BytesPerToken() != want {
			t.Errorf("%s: %d, want %d; %v", text, m.BytesPerToken(), want, err)
		}
	}
}

func TestConfigurationsThatSayTooLittleAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                         "no configuration",
		`[]`:                       "no configuration",
		`{}`:                       "no num_hidden_layers",
		`{"num_hidden_layers": 2}`: "neither",
		`{"num_hidden_layers": 2, "num_key_value_heads": 2}`:                                                       "no head_dim",
		`{"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 64}`:                                    "no head_dim",
		`{"num_hidden_layers": 2, "kv_lora_rank": 2}`:                                                              "qk_rope_head_dim",
		`{"num_hidden_layers": 2000000, "num_attention_heads": 3, "head_dim": 64}`:                                 "layers of 2000000",
		`{"num_hidden_layers": -1, "num_attention_heads": 3, "head_dim": 64}`:                                      "layers of -1",
		`{"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 64, "torch_dtype": "int3"}`:                "int3",
		`{"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 64, "layer_types": ["full_attention"]}`:    "1 layer_types for 2",
		`{"num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 64, "layer_types": ["strange"]}`:           "strange",
		`{"num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 64, "layer_types": ["sliding_attention"]}`: "no sliding_window",
		`{"num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 64, "layer_types": ["mamba"]}`:             "no layer has attention",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := FromConfig(filepath.Join(t.TempDir(), "config.json")); err == nil {
		t.Error("a missing file is read")
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, maxConfigBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromConfig(big); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

func TestTypesOfKV(t *testing.T) {
	m, _ := ByName("llama-3.1-8b")
	for dtype, want := range map[string]int64{"auto": 128 << 10, "fp8": 64 << 10, "float32": 256 << 10, "bfloat16": 128 << 10} {
		if got, err := m.WithType(dtype); err != nil || got.BytesPerToken() != want {
			t.Errorf("%s: %d, %v", dtype, got.BytesPerToken(), err)
		}
	}
	if _, err := m.WithType("int3"); err == nil {
		t.Error("int3 is a type")
	}
}

// docs/replay.md has the table.
func TestTheTableIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([0-9,]+) \\|").FindAllStringSubmatch(string(b), -1) {
		rows[m[1]] = strings.ReplaceAll(m[2], ",", "")
	}
	for _, m := range Models() {
		if rows[m.Name] != fmt.Sprint(m.BytesPerToken()) {
			t.Errorf("%s has %d bytes a token, and docs/replay.md says %q", m.Name, m.BytesPerToken(), rows[m.Name])
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 64, "sliding_window": 3, "sliding_window_pattern": 2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parse(b); err == nil && (m.BytesPerToken() <= 0 || m.SlidingBytesPerToken() < 0 || m.SlidingBytesPerToken() > m.BytesPerToken()) {
			t.Errorf("%+v", m)
		}
	})
}
