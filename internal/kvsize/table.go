package kvsize

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/internal/nearest"
)

// Models are well-known models with the numbers of their published config.json files, and values of 16 bits.
func Models() []Model {
	heads := func(name string, layers, kvHeads, headDim int) Model {
		return Model{Name: name, Layers: layers, KVHeads: kvHeads, HeadDim: headDim, ValueBytes: 2}
	}
	sliding := func(m Model, layers, window int) Model {
		m.SlidingLayers, m.Window = layers, window
		return m
	}
	latent := func(name string, layers int) Model {
		return Model{Name: name, Layers: layers, Latent: 512 + 64, ValueBytes: 2} // kv_lora_rank and qk_rope_head_dim
	}
	return []Model{
		heads("llama-3-8b", 32, 8, 128), heads("llama-3-70b", 80, 8, 128),
		heads("llama-3.1-8b", 32, 8, 128), heads("llama-3.1-70b", 80, 8, 128), heads("llama-3.1-405b", 126, 8, 128),
		heads("llama-3.2-1b", 16, 8, 64), heads("llama-3.2-3b", 28, 8, 128), heads("llama-3.3-70b", 80, 8, 128),
		heads("qwen2.5-0.5b", 24, 2, 64), heads("qwen2.5-1.5b", 28, 2, 128), heads("qwen2.5-3b", 36, 2, 128), heads("qwen2.5-7b", 28, 4, 128),
		heads("qwen2.5-14b", 48, 8, 128), heads("qwen2.5-32b", 64, 8, 128), heads("qwen2.5-72b", 80, 8, 128),
		heads("qwen3-0.6b", 28, 8, 128), heads("qwen3-1.7b", 28, 8, 128), heads("qwen3-4b", 36, 8, 128), heads("qwen3-8b", 36, 8, 128),
		heads("qwen3-14b", 40, 8, 128), heads("qwen3-32b", 64, 8, 128), heads("qwen3-30b-a3b", 48, 4, 128),
		heads("qwen3-235b-a22b", 94, 4, 128), heads("qwen3-coder-480b-a35b", 62, 8, 128),
		heads("mistral-7b", 32, 8, 128), heads("mistral-nemo-12b", 40, 8, 128), heads("mistral-small-24b", 40, 8, 128),
		heads("mistral-large-123b", 88, 8, 128), heads("mixtral-8x7b", 32, 8, 128), heads("mixtral-8x22b", 56, 8, 128),
		latent("deepseek-v2-lite", 27), latent("deepseek-v2", 60), latent("deepseek-v3", 61), latent("deepseek-r1", 61), latent("kimi-k2", 61),
		sliding(heads("gpt-oss-20b", 24, 8, 64), 12, 128), sliding(heads("gpt-oss-120b", 36, 8, 64), 18, 128),
		sliding(heads("gemma-3-1b", 26, 1, 256), 22, 512), sliding(heads("gemma-3-4b", 34, 4, 256), 29, 1024),
		sliding(heads("gemma-3-12b", 48, 8, 256), 40, 1024), sliding(heads("gemma-3-27b", 62, 16, 128), 52, 1024),
		heads("phi-4-14b", 40, 10, 128), heads("glm-4.5", 92, 8, 128), heads("glm-4.5-air", 46, 8, 128),
	}
}

// ByName finds a model of the table. The name may be that of a repository: with its owner before it, and with what
// derived models add to it.
func ByName(name string) (Model, error) {
	all := Models()
	if i := slices.IndexFunc(all, func(m Model) bool { return m.Name == plain(name) }); i >= 0 {
		return all[i], nil
	}
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	return Model{}, fmt.Errorf("model %q is not in the table%s; give the path of its config.json, or --bytes-per-token",
		name, nearest.Hint(plain(name), names))
}

// Find finds a model by its name in the table, or by the path of its config.json or of the directory that holds it.
func Find(nameOrPath string) (Model, error) {
	info, err := os.Stat(nameOrPath)
	if err == nil && info.IsDir() {
		_, err = os.Stat(filepath.Join(nameOrPath, "config.json"))
	}
	if err == nil || strings.HasSuffix(nameOrPath, ".json") {
		return FromConfig(nameOrPath)
	}
	return ByName(nameOrPath)
}

// plain is a model's name without what does not change the shape of its attention.
func plain(name string) string {
	name = strings.ToLower(name[strings.LastIndex(name, "/")+1:])
	name = strings.NewReplacer("_", "-", "meta-llama", "llama", "llama3", "llama-3", "gemma3", "gemma-3").Replace(name)
	for changed := true; changed; {
		changed = false
		for _, tail := range []string{
			"-instruct", "-it", "-pt", "-base", "-chat", "-hf", "-thinking", "-fp8", "-fp4", "-nvfp4", "-mxfp4", "-bf16", "-awq", "-gptq", "-int4", "-int8",
			"-dynamic", "-0324", "-0528", "-2407", "-2411", "-2501", "-2507", "-0905", "-v0.1", "-v0.2", "-v0.3",
		} {
			if rest, ok := strings.CutSuffix(name, tail); ok && rest != "" {
				name, changed = rest, true
			}
		}
	}
	return name
}
