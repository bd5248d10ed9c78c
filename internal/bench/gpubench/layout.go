package gpubench

// Layout is how an engine keeps one block of tokens on its GPU: as equal runs, one in each of its tensors.
type Layout struct {
	// Name says whose layout it is.
	Name string `json:"name"`
	// Tensors of an engine, each an allocation of its own. A block has one run in each.
	Tensors int `json:"tensors"`
	// TokenBytes is what a token takes in one tensor.
	TokenBytes int `json:"token_bytes"`
}

// Layouts are those that are measured: from one run for each block to many short ones. Sizes are of models in bf16.
func Layouts() []Layout {
	return []Layout{
		// 32 layers, 8 heads of 128: 2 KiB of keys and as many of values in a layer.
		{"llama-3-8b, block outermost", 1, 32 * 4096},
		{"llama-3-8b, per layer", 32, 4096},
		{"llama-3-8b, keys and values apart", 2 * 32, 2048},
		// DeepSeek V3: 61 layers, 512 and 64 elements that all heads share.
		{"mla, per layer", 61, 2 * (512 + 64)},
		// gpt-oss-20b: 12 layers of full attention and 12 with a window share 12 tensors; 8 heads of 64. A block belongs to
		// one of the two groups.
		{"hybrid, per layer", 12, 2048},
	}
}

// blockTokens are the sizes of blocks that are measured, in tokens.
func blockTokens() []int { return []int{16, 64} }

// shape is a layout with a size of its blocks.
type shape struct {
	Layout
	tokens int
}

// slotAlign is what the host tier's slots are multiples of.
const slotAlign = 4096

func (s *shape) runBytes() int   { return s.TokenBytes * s.tokens }
func (s *shape) blockBytes() int { return s.runBytes() * s.Tensors }

// slotBytes is what a block takes in the arena.
func (s *shape) slotBytes() int { return (s.blockBytes() + slotAlign - 1) &^ (slotAlign - 1) }

// blocks of one direction: those that fit total, and at least one.
func (s *shape) blocks(totalBytes int64) int { return max(1, int(totalBytes/int64(s.blockBytes()))) }

// shapes are all that are measured.
func shapes() []shape {
	var all []shape
	for _, l := range Layouts() {
		for _, n := range blockTokens() {
			all = append(all, shape{l, n})
		}
	}
	return all
}
