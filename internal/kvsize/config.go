package kvsize

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxConfigBytes bounds a config.json.
const maxConfigBytes = 4 << 20

// config is what a Hugging Face config.json says about attention, in the names that architectures use for it.
type config struct {
	TextConfig *config `json:"text_config"` // of models that see images

	Layers        *int     `json:"num_hidden_layers"`
	NLayer        *int     `json:"n_layer"`
	Heads         *int     `json:"num_attention_heads"`
	NHead         *int     `json:"n_head"`
	KVHeads       *int     `json:"num_key_value_heads"`
	HeadDim       *int     `json:"head_dim"`
	Hidden        *int     `json:"hidden_size"`
	NEmbd         *int     `json:"n_embd"`
	MultiQuery    bool     `json:"multi_query"`
	LatentRank    *int     `json:"kv_lora_rank"`
	LatentRope    *int     `json:"qk_rope_head_dim"`
	Window        *int     `json:"sliding_window"`
	UseWindow     *bool    `json:"use_sliding_window"`
	WindowFrom    *int     `json:"max_window_layers"`
	WindowPattern *int     `json:"sliding_window_pattern"`
	LayerTypes    []string `json:"layer_types"`
	Type          string   `json:"dtype"`
	TorchType     string   `json:"torch_dtype"`
	ModelType     string   `json:"model_type"`
}

// FromConfig reads a config.json, or the one in a directory.
func FromConfig(path string) (Model, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	f, err := os.Open(path)
	if err != nil {
		return Model{}, fmt.Errorf("read a model's configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(b) > maxConfigBytes {
		err = fmt.Errorf("more than %d bytes", maxConfigBytes)
	}
	if err != nil {
		return Model{}, fmt.Errorf("read a model's configuration %s: %w", path, err)
	}
	m, err := parse(b)
	if err != nil {
		return m, fmt.Errorf("%s: %w: give --bytes-per-token", path, err)
	}
	m.Name = path
	return m, nil
}

func parse(b []byte) (Model, error) {
	var c config
	if err := json.Unmarshal(b, &c); err != nil {
		return Model{}, fmt.Errorf("no configuration of a model: %w", err)
	}
	dtype := first(c.Type, c.TorchType)
	if c.TextConfig != nil {
		c = *c.TextConfig
		dtype = first(c.Type, c.TorchType, dtype)
	}
	m, err := c.model()
	if err != nil {
		return m, err
	}
	n, ok := valueBytes(strings.TrimPrefix(first(dtype, "bfloat16"), "torch."))
	if !ok {
		return m, fmt.Errorf("values of type %q are unknown", dtype)
	}
	m.ValueBytes = n
	return m, m.Validate()
}

// model is the shape of the attention.
func (c *config) model() (m Model, err error) {
	layers := or(c.Layers, c.NLayer)
	if layers == nil {
		return m, errors.New("it has no num_hidden_layers")
	}
	m.Layers = *layers
	if err := c.heads(&m); err != nil {
		return m, err
	}
	return m, c.windows(&m)
}

func (c *config) heads(m *Model) error {
	if c.LatentRank != nil {
		if c.LatentRope == nil {
			return errors.New("it has kv_lora_rank and no qk_rope_head_dim")
		}
		m.Latent = *c.LatentRank + *c.LatentRope
		return nil
	}
	heads, hidden := or(c.Heads, c.NHead), or(c.Hidden, c.NEmbd)
	switch {
	case c.KVHeads != nil:
		m.KVHeads = *c.KVHeads
	case c.MultiQuery:
		m.KVHeads = 1
	case heads != nil:
		m.KVHeads = *heads
	default:
		return errors.New("it has neither num_key_value_heads nor num_attention_heads")
	}
	switch {
	case c.HeadDim != nil:
		m.HeadDim = *c.HeadDim
	case heads != nil && hidden != nil && *heads > 0 && *hidden%*heads == 0:
		m.HeadDim = *hidden / *heads
	default:
		return errors.New("it has no head_dim, and none follows from hidden_size and num_attention_heads")
	}
	return nil
}

// windows counts the layers with a window, and takes out those that keep nothing for each token.
func (c *config) windows(m *Model) error {
	used := c.Window != nil && *c.Window > 0 && (c.UseWindow == nil || *c.UseWindow)
	if used {
		m.Window = *c.Window
	}
	switch {
	case len(c.LayerTypes) > 0:
		if len(c.LayerTypes) != m.Layers {
			return fmt.Errorf("it has %d layer_types for %d layers", len(c.LayerTypes), m.Layers)
		}
		for _, kind := range c.LayerTypes {
			switch kind {
			case "full_attention", "attention":
			case "sliding_attention":
				m.SlidingLayers++
			case "linear_attention", "mamba", "conv":
				m.Layers--
			default:
				return fmt.Errorf("layers of type %q are unknown", kind)
			}
		}
	case !used:
	case c.WindowPattern != nil && *c.WindowPattern > 0: // every such layer sees everything
		m.SlidingLayers = m.Layers - m.Layers / *c.WindowPattern
	case strings.HasPrefix(c.ModelType, "gemma3"):
		const pattern = 6 // the default of its configuration
		m.SlidingLayers = m.Layers - m.Layers/pattern
	case c.WindowFrom != nil && strings.HasPrefix(c.ModelType, "qwen"): // layers from this one on
		m.SlidingLayers = max(0, m.Layers-*c.WindowFrom)
	default:
		m.SlidingLayers = m.Layers
	}
	if m.SlidingLayers > 0 && m.Window == 0 {
		return errors.New("it has sliding layers and no sliding_window")
	}
	return nil
}

// first is the first text that is not empty.
func first(texts ...string) string {
	if i := slices.IndexFunc(texts, func(s string) bool { return s != "" }); i >= 0 {
		return texts[i]
	}
	return ""
}

func or(a, b *int) *int {
	if a != nil {
		return a
	}
	return b
}
