package model

import (
	"errors"
	"fmt"
	"slices"
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
	// Windows are the layers' attention windows in tokens, a token's own included, repeated
	// as often as there are layers; 0 is full attention, as is no list at all.
	Windows []int
	// Seed draws the weights.
	Seed uint64
}

// Group is a layer group: the layers of one window.
type Group struct {
	// Window is in tokens; 0 means full attention.
	Window int
	// Layers are the numbers of the layers, ascending.
	Layers []int
}

// Tiny is the model of fast tests: a prompt of 200 tokens takes a few milliseconds.
func Tiny(seed uint64) Config {
	return Config{
		Name: "kvconn-tiny", Vocab: 256, Dim: 32, Hidden: 48, Layers: 5,
		Heads: 4, KVHeads: 2, HeadDim: 8, MaxContext: 4096, Seed: seed,
	}
}

// TinyHybrid is Tiny with layers of three kinds: two windows and full attention. The last
// layer has full attention: what is wrong in a window at the end of a prompt reaches only
// a few tokens of the layer itself, and all tokens through the layers above.
func TinyHybrid(seed uint64) Config {
	c := Tiny(seed)
	c.Name, c.Layers, c.Windows = "kvconn-tiny-hybrid", 6, []int{40, 24, 0}
	return c
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
	for _, w := range c.Windows {
		if w < 0 {
			return fmt.Errorf("model: window %d is negative", w)
		}
	}
	return nil
}

// Window is a layer's attention window, 0 for full attention.
func (c *Config) Window(layer int) int {
	if len(c.Windows) == 0 {
		return 0
	}
	return c.Windows[layer%len(c.Windows)]
}

// Groups lists the layer groups in the order of their first layers. A sequence has a block
// table for each.
func (c *Config) Groups() []Group {
	var groups []Group
	for layer := range c.Layers {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Window == c.Window(layer) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, Group{Window: c.Window(layer)})
		}
		groups[i].Layers = append(groups[i].Layers, layer)
	}
	return groups
}

// PlaneFloats is the number of float32 that one KV head keeps in one layer of a block of
// blockSize tokens.
func (c *Config) PlaneFloats(blockSize int) int { return 2 * blockSize * c.HeadDim }
