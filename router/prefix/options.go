package prefix

import (
	"cmp"
	"fmt"
)

// Options bounds an [Index]. The zero value of a field means its default, which
// [Options.EnsureDefaults] fills in.
type Options struct {
	// MaxBlocks bounds the distinct blocks, placeholders included. Default 16 Mi: the GPU
	// caches of a thousand ranks of 16k blocks each, or 256 Mi tokens in blocks of 16.
	// At most [MaxBlocksLimit].
	MaxBlocks int
	// MaxBytes bounds the memory as the index accounts for it (see [Stats.Bytes]). Default
	// 2 GiB: enough for MaxBlocks in runs of some length, with a reserve.
	MaxBytes int64
	// MaxHolders bounds the holders registered at one time. Default 4096: a thousand ranks,
	// their nodes' disks and buckets, several times over. At most 65,536.
	MaxHolders int
}

// MaxBlocksLimit is the largest bound on blocks that an index accepts.
const MaxBlocksLimit = 1<<26 - 1

const (
	maxHoldersLimit = 1 << 16
	minMaxBytes     = 1 << 20
)

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.MaxBlocks = cmp.Or(o.MaxBlocks, 16<<20)
	o.MaxBytes = cmp.Or(o.MaxBytes, 2<<30)
	o.MaxHolders = cmp.Or(o.MaxHolders, 4096)
}

// Validate reports the first option that cannot be used. It is meant to be called after
// [Options.EnsureDefaults].
func (o *Options) Validate() error {
	switch {
	case o.MaxBlocks < 1 || o.MaxBlocks > MaxBlocksLimit:
		return fmt.Errorf("prefix options: MaxBlocks %d: 1 to %d", o.MaxBlocks, MaxBlocksLimit)
	case o.MaxBytes < minMaxBytes:
		return fmt.Errorf("prefix options: MaxBytes %d: at least %d", o.MaxBytes, minMaxBytes)
	case o.MaxHolders < 1 || o.MaxHolders > maxHoldersLimit:
		return fmt.Errorf("prefix options: MaxHolders %d: 1 to %d", o.MaxHolders, maxHoldersLimit)
	}
	return nil
}
