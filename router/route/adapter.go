package route

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/prefix"
)

// storedScratch is the work space for what stores have of a prompt with a LoRA adapter. Engines' events, and what the router
// predicts of GPUs, go by the adapter's name; records go by its content, which may differ from node to node under one name.
type storedScratch struct {
	scopes  []string // of each rank's disk for the adapter, empty where that is not known
	walk    prefix.Scratch
	results []prefix.Result
	root    rootCache
}

// name looks up what each rank's node has for an adapter's name, and reports whether any has something. A rank without a node is
// not credited: what its engine has under the name is not known.
func (s *storedScratch) name(v *view, adapter string) (any bool) {
	s.scopes = s.scopes[:0]
	var last *source
	for _, state := range v.states {
		scope := ""
		switch {
		case state.disk == nil:
		case state.disk == last: // ranks of a node come together
			scope = s.scopes[len(s.scopes)-1]
		default:
			scope = state.disk.feed.AdapterScope(adapter)
		}
		last = state.disk
		any = any || scope != ""
		s.scopes = append(s.scopes, scope)
	}
	return any
}

// noteRoot has the stores' feeds place the blocks of prompts that begin at root.
func (v *view) noteRoot(root blockkey.Link) {
	for _, from := range v.sources {
		from.feed.NoteRoot(root.Key())
	}
}

// walkStored adds what disks and buckets have of a prompt to results, which have what GPUs have. Each content that nodes
// have under the adapter's name takes a walk: as a rule there is one.
func (r *Router) walkStored(s *storedScratch, p *pool, v *view, prompt []uint32, scope connector.Scope, results []prefix.Result) {
	s.results = slices.Grow(s.results[:0], len(results))[:len(results)]
	for i, content := range s.scopes {
		if content == "" || slices.Contains(s.scopes[:i], content) {
			continue
		}
		root := s.root.of(p, v, connector.Scope{Salt: scope.Salt, LoRA: content})
		v.noteRoot(root)
		r.index.WalkTokens(v.ranks, root, prompt, v.blockSize, &s.walk, s.results)
		for k := range results {
			if s.scopes[k] == content {
				results[k] = joined(&results[k], &s.results[k])
			}
		}
	}
}

// joined is what a rank has whose GPU has the blocks of one walk, and whose stores have those of another. Blocks that stores have
// only after a gap that the GPU fills do not count: neither walk gets there.
func joined(gpu, stored *prefix.Result) prefix.Result {
	g := gpu.GPU
	out := prefix.Result{
		GPU: g, Disk: max(stored.Disk-g, 0), Usable: max(g, stored.Usable), FromGPU: g,
		FromDisk: stored.FromDisk, FromObject: stored.FromObject,
	}
	out.Object = max(stored.Object-max(g-stored.Disk, 0), 0)
	// The GPU's come first. Which tier has those is not known where both are used: the slower one is taken to have the rest.
	over := min(g, stored.Usable)
	over -= cut(&out.FromDisk, over)
	cut(&out.FromObject, over)
	return out
}
