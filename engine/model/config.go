package model

import (
	"errors"
	"fmt"
)

// Config is the shape of a model. Two models of equal Config have equal weights.
type Config struct {
	// Name is the model's name in manifests.
	Name string
	// Vocab is the number of token ids.
	Vocab int
	// Dim is the width of the residual stream, Hidden that of the feed-forward part.
	Dim, Hidden int
	// Layers is the number of attention layers.
	Layers int
	// Heads is the number of query heads, a multiple of KVHeads; HeadDim, which is even,
	// the width of each.
	Heads, KVHeads, HeadDim int
	// MaxContext is the largest number of tokens of a sequence.
	MaxContext int
	// Seed draws the weights.
	Seed uint64
}

// Tiny is the model of fast tests: a prompt of 200 tokens takes a few milliseconds.
func Tiny(seed uint64) Config {
	return Config{
		Name: "kvconn-tiny", Vocab: 256, Dim: 32, Hidden: 48, Layers: 5,
		Heads: 4, KVHeads: 2, HeadDim: 8, MaxContext: 4096, Seed: seed,
	}
}

// Demo is the model of the demo: a prompt of 1,500 tokens takes one to two seconds on two
// cores, against milliseconds to bring its 4.5 MiB of KV back.
func Demo(seed uint64) Config {
	return Config{
		Name: "kvconn-demo", Vocab: 256, Dim: 256, Hidden: 768, Layers: 6,
		Heads: 8, KVHeads: 2, HeadDim: 32, MaxContext: 8192, Seed: seed,
	}
}

// Validate reports the first number that makes no model.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
		max   int
	}{
		{"vocab", c.Vocab, 1 << 20}, {"dim", c.Dim, 1 << 14}, {"hidden", c.Hidden, 1 << 16},
		{"layers", c.Layers, 1 << 10}, {"heads", c.Heads, 1 << 10}, {"kv heads", c.KVHeads, 1 << 10},
		{"head dim", c.HeadDim, 1 << 10}, {"max context", c.MaxContext, 1 << 20},
	} {
		if f.value < 1 || f.value > f.max {
			return fmt.Errorf("model: %s %d: want 1 to %d", f.name, f.value, f.max)
		}
	}
	switch {
	case c.Name == "":
		return errors.New("model: name is empty")
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("model: %d heads do not share %d kv heads evenly", c.Heads, c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("model: head dim %d is odd", c.HeadDim)
	}
	return nil
}

// PageFloats is the number of float32 that one layer keeps of a block of blockSize tokens.
func (c *Config) PageFloats(blockSize int) int {
	return 2 * blockSize * c.KVHeads * c.HeadDim
}
