package prefix

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// Rank says which holders a rank's blocks come from.
type Rank struct {
	// GPU is the rank's own memory, if HasGPU: a rank without events has none.
	GPU    Holder
	HasGPU bool
	// Disks and Objects are the disks and buckets that the rank can load from.
	Disks, Objects []Holder
}

// Result is how far a rank gets with a prompt, in blocks.
type Result struct {
	// GPU is how many blocks from the first on are in the rank's GPU without a gap.
	GPU int32
	// Disk is how many of the blocks that follow directly are on disks that the rank reads, and
	// Object how many of those that follow GPU+Disk are in its buckets: what a loader gets that
	// turns to each tier once. A block that a faster tier has too counts for the slower one
	// if it comes after a gap of the faster one.
	Disk, Object int32
	// Usable is how many blocks from the first on are in the GPU, on a disk or in a bucket,
	// whichever: a GPU block after a gap that a disk fills counts. At least GPU+Disk+Object.
	Usable int32
	// FromGPU, FromDisk and FromObject are the usable blocks by the fastest tier that has
	// each; their sum is Usable.
	FromGPU, FromDisk, FromObject int32
}

// maxRanks bounds the ranks of a view.
const maxRanks = 1 << 20

// Ranks is a set of ranks made ready for walks, which yield a [Result] for each. It does
// not change: when ranks or their holders do, make another. It may be used by any number
// of walks at the same time.
type Ranks struct {
	// holders are the ranks' holders: of rank r those at [first[r], first[r+1]).
	holders []tiered
	first   []uint32
	// users are the ranks of the holders: of holder h those at [firstUser[h], firstUser[h+1]).
	users     []uint32
	firstUser []uint32
	// relevant are all holders of a rank. sole are those whose only rank has no other holder.
	relevant, sole coverage.Set
	walkers        sync.Pool
}

type tiered struct {
	h   Holder
	bit uint8
}

// NewRanks makes ranks ready for walks. Result i of a walk is that of ranks[i]. The index
// need not know the holders yet.
func NewRanks(ranks []Rank) (*Ranks, error) {
	if len(ranks) > maxRanks {
		return nil, fmt.Errorf("prefix ranks: %d, at most %d", len(ranks), maxRanks)
	}
	v := &Ranks{first: make([]uint32, 1, len(ranks)+1)}
	top := Holder(0)
	for _, r := range ranks {
		from := len(v.holders)
		if r.HasGPU {
			v.holders = append(v.holders, tiered{r.GPU, 1 << GPU})
		}
		for _, h := range r.Disks {
			v.holders = append(v.holders, tiered{h, 1 << Disk})
		}
		for _, h := range r.Objects {
			v.holders = append(v.holders, tiered{h, 1 << Object})
		}
		for _, t := range v.holders[from:] {
			if t.h >= maxHoldersLimit {
				return nil, errors.New("prefix ranks: a holder that no index has")
			}
			top = max(top, t.h+1)
		}
		v.first = append(v.first, uint32(len(v.holders)))
	}
	v.relevant, v.sole = make(coverage.Set, (top+63)/64), make(coverage.Set, (top+63)/64)
	users := make([][]uint32, len(v.relevant)*64)
	for r := range ranks {
		for _, t := range v.of(uint32(r)) {
			v.relevant[t.h/64] |= 1 << (t.h % 64)
			if u := users[t.h]; len(u) == 0 || u[len(u)-1] != uint32(r) { // a holder may be named twice
				users[t.h] = append(u, uint32(r))
			}
		}
	}
	v.firstUser = make([]uint32, 1, len(users)+1)
	for h, u := range users {
		if len(u) == 1 && len(v.of(u[0])) == 1 {
			v.sole[h/64] |= 1 << (h % 64)
		}
		v.users = append(v.users, u...)
		v.firstUser = append(v.firstUser, uint32(len(v.users)))
	}
	v.walkers.New = func() any { return newWalker(v) }
	return v, nil
}

// Len is the number of ranks.
func (v *Ranks) Len() int { return len(v.first) - 1 }

func (v *Ranks) of(rank uint32) []tiered { return v.holders[v.first[rank]:v.first[rank+1]] }

func (v *Ranks) usersOf(h Holder) []uint32 { return v.users[v.firstUser[h]:v.firstUser[h+1]] }
