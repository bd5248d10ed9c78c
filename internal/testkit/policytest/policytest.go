// Package policytest helps to test routing policies.
package policytest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/router/policy"
)

// Idle returns a state of n ranks that take at most maxActive requests each, with the given active requests.
func Idle(n, maxActive int, active ...int) *policy.State {
	s := &policy.State{BlockSize: 16, Ranks: make([]policy.Rank, n)}
	for i := range s.Ranks {
		s.Ranks[i] = policy.Rank{ID: int32(i), Ready: true, Capacity: policy.Capacity{MaxActive: maxActive}}
		if i < len(active) {
			s.Ranks[i].Load.ActiveRequests = active[i]
		}
	}
	return s
}

// Prompt returns a request of a number of tokens, matched in the GPU of the first ranks.
func Prompt(id uint64, tokens int, s *policy.State, match ...int32) policy.Request {
	r := policy.Request{ID: id, Tokens: tokens, Pin: policy.NoPin}
	if len(match) > 0 {
		r.Match = make([]policy.Match, len(s.Ranks))
		for i, m := range match {
			r.Match[i] = policy.Match{GPU: m, Usable: m}
		}
	}
	return r
}

// Prompts returns n such requests, with the ids from 1 on.
func Prompts(n, tokens int, s *policy.State, match ...int32) []policy.Request {
	var all []policy.Request
	for i := range n {
		all = append(all, Prompt(uint64(i+1), tokens, s, match...))
	}
	return all
}

// Pinned returns r pinned to a rank.
func Pinned(r policy.Request, rank int32, strict bool) policy.Request {
	r.Pin, r.Strict = rank, strict
	return r
}

// Pointers returns the addresses of the elements.
func Pointers[T any](all []T) (list []*T) {
	for i := range all {
		list = append(list, &all[i])
	}
	return list
}

// Place places one request.
func Place(p policy.Policy, s *policy.State, r policy.Request) (d policy.Decision) {
	p.Place(s, &r, &d)
	return d
}

// PlaceAll places requests together if p can, or one after the other as the router does, each counting for
// those after it: strict pins first.
func PlaceAll(p policy.Policy, s *policy.State, reqs []policy.Request) []policy.Decision {
	out := make([]policy.Decision, len(reqs))
	for i := range out {
		out[i] = policy.Decision{Rank: 4711, Index: 4711, Reason: "not decided"}
	}
	if b, ok := p.(policy.Batcher); ok {
		b.PlaceAll(s, Pointers(reqs), Pointers(out))
		return out
	}
	now := policy.State{Ranks: slices.Clone(s.Ranks), BlockSize: s.BlockSize}
	for _, strict := range []bool{true, false} {
		for i := range reqs {
			if r, d := &reqs[i], &out[i]; strict == (r.Strict && r.Pin != policy.NoPin) {
				if p.Place(&now, r, d); d.Placed() {
					now.Ranks[d.Index].Load.Place(r.Tokens, int(d.UseTokens), int(d.LoadDisk), int(d.LoadObject), now.BlockSize)
				}
			}
		}
	}
	return out
}

// Ranks returns the ranks of all decisions, -1 for none, and how many each rank of the state got.
func Ranks(s *policy.State, out []policy.Decision) (ranks []int32, counts []int) {
	counts = make([]int, len(s.Ranks))
	for _, d := range out {
		ranks = append(ranks, d.Rank)
		if d.Placed() {
			counts[d.Index]++
		}
	}
	return ranks, counts
}

// Expect compares two values by their printed forms.
func Expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
