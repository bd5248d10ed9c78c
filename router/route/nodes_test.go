package route

import (
	"slices"
	"testing"
)

// The policy is told which ranks share a disk.
func TestRanksOfANodeShareItsNumber(t *testing.T) {
	r := newRouter(t, 0, nil)
	for i, node := range []string{"a", "", "b", "a", "b", ""} {
		spec := rank(i)
		if node != "" {
			spec.Node, spec.NodeURL, spec.CacheModel = node, "http://127.0.0.1:1", "m"
		}
		add(t, r, spec)
	}
	nodes := func() (list []int32) {
		p := r.pools["m"]
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.state.Ranks {
			list = append(list, p.state.Ranks[i].Node)
		}
		return list
	}
	ask(t, r, free(prompt(1, 64)))
	if got, want := nodes(), []int32{0, -1, 2, 0, 2, -1}; !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
	if _, err := r.Remove(0); err != nil {
		t.Fatal(err)
	}
	ask(t, r, free(prompt(1, 64)))
	if got, want := nodes(), []int32{-1, 1, 2, 1, -1}; !slices.Equal(got, want) {
		t.Errorf("nodes %v without the first rank, want %v", got, want)
	}
}
