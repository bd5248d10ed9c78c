package prefix

import "testing"

// check compares what the index keeps about itself with what is in it.
func (x *Index) check(t *testing.T) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	held := make([]int64, len(x.holders))
	blocks, runs, names := 0, 0, map[*names]int{}
	for id, r := range x.runs {
		if r == nil {
			continue
		}
		runs++
		n := r.len()
		blocks += int(n)
		c := r.cover.Load()
		if r.id != uint32(id) || x.heads.find(&r.head) != r || n == 0 {
			t.Fatalf("run %d of %d blocks: id %d, or not found by its head", id, n, r.id)
		}
		if end := max(c.End(nil), r.kidEnd()); end != n {
			t.Fatalf("run %d has %d blocks, held or followed up to %d", id, n, end)
		}
		for h := range x.holders {
			held[h] += int64(c.Count(Holder(h)))
		}
		for _, e := range r.named {
			for off := range n {
				p := makePlace(r, off)
				id := e.in.nameAt(x.runs, p)
				if id == 0 {
					continue
				}
				got, ok := e.in.get(x.runs, id)
				if !ok && e.in.keyed {
					continue // never named by a store
				}
				if !ok || got != p {
					t.Fatalf("name %x of block %d in run %d leads to %v %v", id, off, r.id, got, ok)
				}
				names[e.in]++
			}
			if len(e.ids) > int(n) {
				t.Fatalf("run %d has %d blocks, %d names", id, n, len(e.ids))
			}
		}
	}
	for h, ho := range x.holders {
		if ho != nil && ho.blocks != held[h] {
			t.Fatalf("holder %d: counted %d blocks, has %d", h, ho.blocks, held[h])
		}
	}
	for d, n := range names {
		used := 0
		for i := range d.shards {
			used += d.shards[i].used
		}
		if used != n {
			t.Fatalf("domain %q has %d names, its map %d", d.domain, n, used)
		}
	}
	if x.stats.Blocks != blocks || x.stats.Runs != runs {
		t.Fatalf("counted %d blocks in %d runs, there are %d in %d", x.stats.Blocks, x.stats.Runs, blocks, runs)
	}
}
