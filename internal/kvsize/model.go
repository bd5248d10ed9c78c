// Package kvsize says how much KV a model makes for each token of a prompt: from a table of well-known models, or from a
// model's own config.json.
package kvsize

import (
	"errors"
	"fmt"
)

// Model is what decides the size of a model's KV: the shape of its attention.
type Model struct {
	Name string
	// Layers are those with attention. Layers that keep a state of fixed size instead (linear attention, Mamba) are not
	// counted.
	Layers int
	// SlidingLayers of them look at the last Window tokens only.
	SlidingLayers, Window int
	// KVHeads and HeadDim are those of keys and values.
	KVHeads, HeadDim int
	// Latent is the number of values that multi-head latent attention keeps for each token and layer, in place of heads;
	// 0 for other attention.
	Latent int
	// ValueBytes is the size of a value.
	ValueBytes int
}

// Validate reports the first number that no model has.
func (m *Model) Validate() error {
	const most = 1 << 20 // no product of these overflows
	for name, n := range map[string]int{
		"layers": m.Layers, "KV heads": m.KVHeads, "size of a head": m.HeadDim, "latent size": m.Latent, "sliding layers": m.SlidingLayers, "window": m.Window,
	} {
		if n < 0 || n > most {
			return fmt.Errorf("%s of %d: 0 to %d", name, n, most)
		}
	}
	switch {
	case m.Layers == 0:
		return errors.New("no layer has attention")
	case m.Latent == 0 && (m.KVHeads == 0 || m.HeadDim == 0):
		return errors.New("the number or size of KV heads is unknown")
	case m.SlidingLayers > m.Layers:
		return fmt.Errorf("%d sliding layers of %d", m.SlidingLayers, m.Layers)
	case m.ValueBytes < 1 || m.ValueBytes > 8:
		return fmt.Errorf("values of %d bytes", m.ValueBytes)
	}
	return nil
}

// layerBytes is the KV of a token in one layer.
func (m *Model) layerBytes() int64 {
	values := int64(2) * int64(m.KVHeads) * int64(m.HeadDim)
	if m.Latent > 0 {
		values = int64(m.Latent)
	}
	return values * int64(m.ValueBytes)
}

// BytesPerToken is the KV of a token in all layers: what is stored of it. A model of several ranks divides it among them.
func (m *Model) BytesPerToken() int64 { return int64(m.Layers) * m.layerBytes() }

// SlidingBytesPerToken is the part of BytesPerToken that only the last Window tokens of a prefix need when they are loaded.
func (m *Model) SlidingBytesPerToken() int64 { return int64(m.SlidingLayers) * m.layerBytes() }

// String describes the model's attention.
func (m *Model) String() string {
	text := fmt.Sprintf("%d layers, %d KV heads of %d", m.Layers, m.KVHeads, m.HeadDim)
	if m.Latent > 0 {
		text = fmt.Sprintf("%d layers, latent attention of %d", m.Layers, m.Latent)
	}
	if m.SlidingLayers > 0 {
		text += fmt.Sprintf(", %d of the layers with a window of %d tokens", m.SlidingLayers, m.Window)
	}
	return text + fmt.Sprintf(", %d bytes a value", m.ValueBytes)
}

// valueBytes are the sizes of types that engines keep KV in, by the names that configurations and engines use.
func valueBytes(dtype string) (int, bool) {
	switch dtype {
	case "float32", "fp32", "float":
		return 4, true
	case "bfloat16", "bf16", "float16", "fp16", "half":
		return 2, true
	case "fp8", "fp8_e4m3", "fp8_e5m2", "float8", "float8_e4m3fn", "float8_e5m2", "int8":
		return 1, true
	}
	return 0, false
}

// WithType is the model with its KV in values of another type: the engine's --kv-cache-dtype. "auto" leaves it as it is.
func (m Model) WithType(dtype string) (Model, error) {
	if dtype == "auto" || dtype == "" {
		return m, nil
	}
	n, ok := valueBytes(dtype)
	if !ok {
		return m, fmt.Errorf("type %q of KV: auto, fp8, bfloat16, float16 or float32", dtype)
	}
	m.ValueBytes = n
	return m, nil
}
