package connector

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxManifestBytes bounds an encoded manifest. Real ones are under 2 KiB.
const MaxManifestBytes = 64 << 10

// HashScheme is the version of the key and proof chains (see [NextKey] and [NextProof]); it is part of
// every namespace, so that a change of hashing can never turn into a false hit.
const HashScheme = "kvconn-1"

// Key schemes: how a namespace's keys are made.
const (
	// KeySchemeTokens means that block keys are hashed by the leader from token ids.
	KeySchemeTokens = "tokens"
	// KeySchemeEngine means that the engine brings its own cryptographic prefix hashes:
	// the whole hash is the proof, its first 128 bits are the key (see [EngineKey]).
	KeySchemeEngine = "engine"
)

// Manifest is everything that must match for KV bytes to be reusable. Its canonical
// JSON form is hashed into the [NamespaceDigest] and kept beside the records.
type Manifest struct {
	// Engine is the engine family and version that laid out the bytes, for example
	// "vllm/0.32.0": the order of bytes inside a block is the engine's own business.
	Engine string `json:"engine"`
	// Model is the model's name as the engine was given it.
	Model string `json:"model"`
	// Revision tells apart weights under one name, exactly: a hub's commit or a digest of their
	// whole content. A branch or a sample would let one model load another's KV.
	Revision string `json:"revision,omitempty"`
	// KVDType is the element type of the cache, for example "bfloat16".
	KVDType string `json:"kv_dtype"`
	// BlockSize is the number of tokens in a token block.
	BlockSize int `json:"block_size"`
	// Groups are the layer groups: layers that keep the same tokens in the same form. A
	// model whose layers are all alike has one.
	Groups []Group `json:"groups"`
	// TensorParallel and PipelineParallel are the sizes of the rank grid.
	TensorParallel   int `json:"tensor_parallel"`
	PipelineParallel int `json:"pipeline_parallel"`
	// KeyScheme says how keys are made; see [KeySchemeTokens].
	KeyScheme string `json:"key_scheme"`
	// HashScheme is [HashScheme] of the writer.
	HashScheme string `json:"hash_scheme"`
	// Extra holds what else the engine knows to change the bytes: the attention kernel's
	// instruction set, quantization, the model's configuration, the draft model's weights.
	Extra map[string]string `json:"extra,omitempty"`
}

// Validate reports the first field that makes the manifest unusable.
func (m *Manifest) Validate() error {
	switch {
	case m.Engine == "":
		return errors.New("manifest: engine is empty")
	case m.Model == "":
		return errors.New("manifest: model is empty")
	case m.KVDType == "":
		return errors.New("manifest: kv_dtype is empty")
	case m.BlockSize < 1 || m.BlockSize > MaxBlockSize:
		return fmt.Errorf("manifest: block_size %d: want 1 to %d", m.BlockSize, MaxBlockSize)
	case len(m.Groups) < 1 || len(m.Groups) > MaxGroups:
		return fmt.Errorf("manifest: %d layer groups: want 1 to %d", len(m.Groups), MaxGroups)
	case m.TensorParallel < 1 || m.TensorParallel > MaxShards || m.PipelineParallel < 1 || m.PipelineParallel > MaxShards ||
		m.Ranks()*len(m.Groups) > MaxShards:
		return fmt.Errorf("manifest: tensor_parallel %d x pipeline_parallel %d ranks of %d layer groups: want 1 to %d shards",
			m.TensorParallel, m.PipelineParallel, len(m.Groups), MaxShards)
	case m.KeyScheme != KeySchemeTokens && m.KeyScheme != KeySchemeEngine:
		return fmt.Errorf("manifest: key_scheme %q: want %q or %q", m.KeyScheme, KeySchemeTokens, KeySchemeEngine)
	case m.HashScheme != HashScheme:
		return fmt.Errorf("manifest: hash_scheme %q: this daemon speaks %q", m.HashScheme, HashScheme)
	}
	for i := range m.Groups {
		if err := m.Groups[i].validate(m.PipelineParallel); err != nil {
			return fmt.Errorf("manifest: group %d: %w", i, err)
		}
	}
	return nil
}

// Limits of a manifest and of what is derived from it.
const (
	// MaxBlockSize is the largest number of tokens in a block.
	MaxBlockSize = 4096
	// MaxShards is the largest number of shards of one block.
	MaxShards = 1024
	// MaxGroups is the largest number of layer groups.
	MaxGroups = 16
	maxLayers = 4096
)

// Canonical returns the one JSON form of the manifest that is hashed: fields in the
// order of the struct, map keys sorted, no white space.
func (m *Manifest) Canonical() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("connector: encode a manifest: %v", err)) // it has no value that could fail
	}
	return b
}

// Digest returns the namespace's identity.
func (m *Manifest) Digest() NamespaceDigest { return sha256.Sum256(m.Canonical()) }

// Differences returns the sorted names of the fields in which two manifests differ, entries of Extra as
// "extra.name". Equal manifests have none.
func (m *Manifest) Differences(o *Manifest) []string {
	mine, others := m.Fields(), o.Fields()
	var names []string
	for name, value := range mine {
		if other, ok := others[name]; !ok || other != value {
			names = append(names, name)
		}
	}
	for name := range others {
		if _, ok := mine[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Fields returns the values of the fields by name, as JSON has them; those of Extra as they are, as "extra.name".
func (m *Manifest) Fields() map[string]string {
	plain := *m
	plain.Extra = nil
	var values map[string]json.RawMessage
	if err := json.Unmarshal(plain.Canonical(), &values); err != nil {
		panic(fmt.Sprintf("connector: decode a manifest: %v", err)) // it was just encoded
	}
	fields := make(map[string]string, len(values)+len(m.Extra))
	for name, value := range values {
		fields[name] = string(value)
	}
	for name, value := range m.Extra {
		fields["extra."+name] = value
	}
	return fields
}

// ParseManifest decodes and validates a manifest. Unknown fields are an error: a field
// that this daemon does not know could be one that changes the bytes.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > MaxManifestBytes {
		return nil, fmt.Errorf("manifest of %d bytes: at most %d", len(b), MaxManifestBytes)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	m := new(Manifest)
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if n := len(m.Canonical()); n > MaxManifestBytes { // JSON may be shorter than its canonical form
		return nil, fmt.Errorf("manifest of %d bytes in its canonical form: at most %d", n, MaxManifestBytes)
	}
	return m, nil
}

// Group is a layer group: attention layers that keep the same tokens in the same form.
type Group struct {
	// Layers is the number of layers of the whole model that are in the group.
	Layers int `json:"layers"`
	// Window is the number of tokens that a layer looks back on, its own included; 0 means
	// all of them (full attention).
	Window int `json:"window,omitempty"`
	// KVHeads is the number of KV heads a rank holds, HeadSize the elements of K and V
	// together that one head keeps for one token.
	KVHeads  int `json:"kv_heads"`
	HeadSize int `json:"head_size"`
	// Layout names the order of dimensions of a block, for example "LBHNC".
	Layout string `json:"layout"`
	// Replicated is set where all tensor-parallel ranks hold the same bytes (MLA): they
	// are stored once, by the first rank of each pipeline stage.
	Replicated bool `json:"replicated,omitempty"`
	// Stages are the pipeline stages that have layers of the group, in ascending order;
	// empty means all.
	Stages []int `json:"stages,omitempty"`
}

func (g *Group) validate(stages int) error {
	switch {
	case g.Layers < 1 || g.Layers > maxLayers:
		return fmt.Errorf("layers %d: want 1 to %d", g.Layers, maxLayers)
	case g.Window < 0 || g.Window > MaxTokens:
		return fmt.Errorf("window %d: want 0 to %d tokens", g.Window, MaxTokens)
	case g.KVHeads < 0 || g.HeadSize < 0:
		return errors.New("kv_heads or head_size is negative")
	}
	for i, s := range g.Stages {
		if s < 0 || s >= stages || (i > 0 && s <= g.Stages[i-1]) {
			return fmt.Errorf("stages %v: want ascending numbers below pipeline_parallel %d", g.Stages, stages)
		}
	}
	return nil
}

// FirstBlock is the first block that the group's layers need to go on after boundary
// tokens: block 0 with full attention, else the block of the first token that the token
// at the boundary still looks back on (TensorRT-LLM's stale end).
func (g *Group) FirstBlock(boundary, blockSize int) int {
	if g.Window == 0 {
		return 0
	}
	return max(0, boundary+1-g.Window) / blockSize
}

// Ranks is the number of engine worker processes that hold parts of a block. Rank r is
// tensor-parallel rank r % TensorParallel of stage r / TensorParallel.
func (m *Manifest) Ranks() int { return m.TensorParallel * m.PipelineParallel }

// Shard is the number of the part of a block that a rank keeps for a layer group. It
// reports false where the rank's stage has no layers of the group. Ranks that keep the
// same bytes have the same shard.
func (m *Manifest) Shard(rank, group int) (Shard, bool) {
	g := &m.Groups[group]
	stage, part := rank/m.TensorParallel, rank%m.TensorParallel
	if len(g.Stages) > 0 && !slices.Contains(g.Stages, stage) {
		return 0, false
	}
	if g.Replicated {
		part = 0
	}
	return Shard((stage*m.TensorParallel+part)*len(m.Groups) + group), true
}

// Shards lists the shards of a block that some ranks keep, of all layer groups. Some may be listed twice.
func (m *Manifest) Shards(ranks []int) (shards []Shard) {
	for _, rank := range ranks {
		for g := range m.Groups {
			if s, holds := m.Shard(rank, g); holds {
				shards = append(shards, s)
			}
		}
	}
	return shards
}

// Writes reports whether it is this rank that stores its shard of a group.
func (m *Manifest) Writes(rank, group int) bool {
	return !m.Groups[group].Replicated || rank%m.TensorParallel == 0
}

// GroupShards lists the shards of one block of a group. A hit needs all of them.
func (m *Manifest) GroupShards(group int) []Shard {
	var shards []Shard
	for rank := range m.Ranks() {
		if s, ok := m.Shard(rank, group); ok && !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	return shards
}
