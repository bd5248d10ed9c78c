package event

// Handler receives the events of a batch in order. What the pointers point to is valid until the method
// returns.
type Handler interface {
	// Stored says that blocks entered a cache.
	Stored(*Stored)
	// Removed says that copies of blocks left a cache.
	Removed(*Removed)
	// Cleared says that the rank no longer holds anything.
	Cleared()
}

// SpecKind is the kind of attention of the cache group that an event is about.
type SpecKind uint8

// The kinds differ in what a present block says about a prefix.
const (
	// SpecAbsent: the event does not say.
	SpecAbsent SpecKind = iota
	// SpecFull: every layer of the group attends to the whole prefix (full, MLA and sink attention), so a
	// block is present as long as it is of use.
	SpecFull
	// SpecOther: sliding windows, state space layers and others. Their blocks are no prefix entries.
	SpecOther
)

func specOf(name []byte) SpecKind {
	switch string(name) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return SpecFull
	case "":
		return SpecAbsent
	default:
		return SpecOther
	}
}

// NoGroup is the group of an event that names none.
const NoGroup = -1

// Stored says that consecutive blocks of one prompt entered a cache.
type Stored struct {
	// Hashes are the engine's names of the blocks. A byte hash is folded to its last 8 bytes, big endian, as
	// vLLM itself does when it publishes integers; a signed integer keeps its bits.
	Hashes []uint64
	// Parent names the block before the first one, if HasParent; else the first one begins a prompt.
	Parent    uint64
	HasParent bool
	// Tokens are the token ids of all blocks, 4 bytes each, little endian (see connector.AppendTokens).
	// It is empty in events that name blocks by hash only (vLLM's offload tiers). Ids of more than 32 bits
	// (SGLang's for images) are cut, and their blocks have extra keys.
	Tokens []byte
	// BlockSize is in tokens, 0 if the event does not say.
	BlockSize int
	// OffGPU says that the blocks are in other memory than the engine's own cache: an event names that, as GPU,
	// or no memory.
	OffGPU bool
	// LoRAName is the adapter's name; LoRAID, if HasLoRAID, is its number in older releases.
	LoRAName  []byte
	LoRAID    int64
	HasLoRAID bool
	// Salt keeps equal tokens apart (cache_salt). vLLM sends it among the extra keys of a prompt's first
	// block.
	Salt []byte
	// Extra is empty, or has for each block the msgpack form of what else its hash covers (multimodal
	// identifiers, prompt embeddings, ids that are no tokens), nil if that is only LoRA and salt. If the event
	// does not say which block's they are, each has all of them, or a digest.
	Extra [][]byte
	// Group is the number of the cache group, or [NoGroup].
	Group int
	Spec  SpecKind
}

// Removed says that copies of blocks left a cache. vLLM sends it for each copy: the block may still be there in
// another copy.
type Removed struct {
	Hashes []uint64
	OffGPU bool // as of [Stored]
	// Group is the number of the cache group, or [NoGroup].
	Group int
}

// Batch is the envelope of a message.
type Batch struct {
	// Rank is the data-parallel rank that the engine names, if HasRank.
	Rank    int
	HasRank bool
	// Events is the number of events in the batch, those of unknown type included.
	Events int
}
