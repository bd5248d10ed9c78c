package blocksize

import (
	"cmp"
	"maps"
	"slices"
)

// Status is what is known of a model's block size, with the JSON names of the HTTP interface.
type Status struct {
	// Model is its name, Tokens the size that decisions are made with.
	Model  string `json:"model"`
	Tokens int    `json:"tokens"`
	// From says where Tokens comes from.
	From Origin `json:"from"`
	// Engines are the sizes that engines' events have, of engines whose word counts; Stores those of namespaces. By size.
	Engines []RanksOf      `json:"engines,omitempty"`
	Stores  []NamespacesOf `json:"stores,omitempty"`
}

// RanksOf are the ranks whose events have one block size.
type RanksOf struct {
	Tokens int     `json:"tokens"`
	Ranks  []int32 `json:"ranks"`
}

// NamespacesOf counts the namespaces of one block size. A store that several ranks follow in different ways counts as several.
type NamespacesOf struct {
	Tokens     int `json:"tokens"`
	Namespaces int `json:"namespaces"`
}

// Status is what is known now.
func (s *Size) Status(model string) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Model: model, Tokens: s.Tokens(), From: s.origin}
	ranks := make(map[int][]int32)
	for _, e := range s.engines.engines {
		if e.counts {
			ranks[e.tokens] = append(ranks[e.tokens], e.rank)
		}
	}
	for tokens, list := range ranks {
		slices.Sort(list)
		st.Engines = append(st.Engines, RanksOf{tokens, list})
	}
	stores := s.byStores()
	for _, tokens := range slices.Sorted(maps.Keys(stores)) {
		st.Stores = append(st.Stores, NamespacesOf{tokens, stores[tokens]})
	}
	slices.SortFunc(st.Engines, func(a, b RanksOf) int { return cmp.Compare(a.Tokens, b.Tokens) })
	return st
}
