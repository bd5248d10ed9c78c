package feed

import (
	"bytes"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/store/residency"
)

// view is what one namespace of a store holds. A store knows a block's parent but not its place, and names
// blocks in any order, while an index wants parents first. So a block waits until its parent has a place.
type view struct {
	holder Holder
	index  Index
	shards *residency.Shards
	// isRoot reports whether prompts begin at a key.
	isRoot func(connector.Key) bool
	// loading says that a snapshot is being read; snapshot gathers its complete blocks.
	loading  bool
	snapshot []link
	// waiting has the parent of each block that waits, children the blocks that wait for a parent.
	waiting  map[connector.Key]connector.Key
	children map[connector.Key][]connector.Key
	maxWait  int
	dropped  uint64 // because more than maxWait would wait
	refused  uint64 // by the index

	run  []connector.Key // consecutive blocks, not yet in the index
	head connector.Key   // the parent of the first one
	ids  []uint64
}

type link struct{ parent, key connector.Key }

func (v *view) stored(key, parent connector.Key, shard connector.Shard) {
	switch {
	case !v.shards.Stored(key, shard):
	case v.loading:
		if len(v.snapshot) < v.maxWait {
			v.snapshot = append(v.snapshot, link{parent: parent, key: key})
		} else {
			v.dropped++
		}
	case len(v.run) > 0 && v.run[len(v.run)-1] == parent:
		v.run = append(v.run, key)
	default:
		v.flush()
		v.head, v.run = parent, append(v.run, key)
	}
}

func (v *view) removed(key connector.Key, shard connector.Shard) {
	if !v.shards.Removed(key, shard) {
		return
	}
	v.flush()
	if parent, ok := v.waiting[key]; ok {
		v.unwait(key, parent)
		return
	}
	v.ids = append(v.ids[:0], prefix.KeyID(key))
	v.index.Removed(v.holder, v.ids)
}

// flush puts the run into the index, and the blocks that waited for it.
func (v *view) flush() {
	if len(v.run) == 0 {
		return
	}
	keys := v.run
	v.run = v.run[:0]
	if !v.store(v.head, keys) {
		parent := v.head
		for _, key := range keys {
			v.wait(key, parent)
			parent = key
		}
		return
	}
	if len(v.waiting) > 0 {
		for _, key := range slices.Clone(keys) {
			v.release(key)
		}
	}
}

// placed reports whether blocks that follow parent have a place.
func (v *view) placed(parent connector.Key) (root, ok bool) {
	if v.isRoot(parent) {
		return true, true
	}
	found, ok := v.index.ParentKey(v.holder, prefix.KeyID(parent))
	return false, ok && found == parent
}

// store puts consecutive blocks into the index, if their parent is there.
func (v *view) store(parent connector.Key, keys []connector.Key) bool {
	root, ok := v.placed(parent)
	if !ok {
		return false
	}
	v.ids = v.ids[:0]
	for i := range keys {
		v.ids = append(v.ids, prefix.KeyID(keys[i]))
	}
	if err := v.index.Stored(v.holder, prefix.KeyID(parent), !root, v.ids, keys); err != nil {
		v.refused += uint64(len(keys))
	}
	return true
}

func (v *view) wait(key, parent connector.Key) {
	if len(v.waiting) >= v.maxWait {
		v.dropped++
		return
	}
	if v.waiting == nil {
		v.waiting, v.children = make(map[connector.Key]connector.Key), make(map[connector.Key][]connector.Key)
	}
	if _, ok := v.waiting[key]; !ok {
		v.waiting[key] = parent
		v.children[parent] = append(v.children[parent], key)
	}
}

func (v *view) unwait(key, parent connector.Key) {
	delete(v.waiting, key)
	list := slices.DeleteFunc(v.children[parent], func(k connector.Key) bool { return k == key })
	if len(list) == 0 {
		delete(v.children, parent)
	} else {
		v.children[parent] = list
	}
}

// release puts the blocks that wait for parent, which has its place now, and all that follow them into the
// index.
func (v *view) release(parent connector.Key) {
	for todo := []connector.Key{parent}; len(todo) > 0; {
		parent := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, key := range v.children[parent] {
			run := []connector.Key{key}
			delete(v.waiting, key)
			for next := v.children[key]; len(next) == 1; next = v.children[run[len(run)-1]] {
				delete(v.children, run[len(run)-1])
				delete(v.waiting, next[0])
				run = append(run, next[0])
			}
			v.store(parent, run)
			if last := run[len(run)-1]; len(v.children[last]) > 0 {
				todo = append(todo, last)
			}
		}
		delete(v.children, parent)
	}
}

// noteRoot puts the prompts that begin at root into the index.
func (v *view) noteRoot(root connector.Key) {
	if !v.loading {
		v.flush()
		v.release(root)
	}
}

func (v *view) loaded() {
	v.loading = false
	links := v.snapshot
	v.snapshot = nil
	slices.SortFunc(links, func(a, b link) int { return bytes.Compare(a.parent[:], b.parent[:]) })
	chains := chains{links: links, placed: make([]bool, len(links))}
	for i := range links {
		parent := links[i].parent
		if chains.placed[i] || i > 0 && links[i-1].parent == parent {
			continue
		}
		if _, ok := v.placed(parent); ok {
			chains.place(parent, v.store)
		}
	}
	for i := range links {
		if !chains.placed[i] {
			v.wait(links[i].key, links[i].parent)
		}
	}
}

// chains are blocks sorted by their parents, so that binary search finds the blocks that follow one: that
// takes a fifth of the memory of maps.
type chains struct {
	links     []link
	placed    []bool
	run, todo []connector.Key
}

// following are the blocks [from, to) that follow parent.
func (c *chains) following(parent connector.Key) (from, to int) {
	from, _ = slices.BinarySearchFunc(c.links, parent, func(l link, k connector.Key) int {
		return bytes.Compare(l.parent[:], k[:])
	})
	for to = from; to < len(c.links) && c.links[to].parent == parent; to++ {
	}
	return from, to
}

// place hands all blocks that follow parent to store, parents first, in runs up to the next fork.
func (c *chains) place(parent connector.Key, store func(parent connector.Key, keys []connector.Key) bool) {
	c.todo = append(c.todo[:0], parent)
	for len(c.todo) > 0 {
		parent := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		from, to := c.following(parent)
		for i := from; i < to; i++ {
			if c.placed[i] {
				continue
			}
			c.placed[i] = true
			c.run = append(c.run[:0], c.links[i].key)
			f, t := c.following(c.links[i].key)
			for t-f == 1 && !c.placed[f] {
				c.placed[f] = true
				c.run = append(c.run, c.links[f].key)
				f, t = c.following(c.links[f].key)
			}
			store(parent, c.run)
			if t > f {
				c.todo = append(c.todo, c.run[len(c.run)-1])
			}
		}
	}
}
