package service

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/route"
)

// blockSizeReasons says which engines and stores have blocks that do not count because of their size.
func blockSizeReasons(st *route.Stats) (list []HealthReason) {
	feeds := false
	for i := range st.BlockSizes {
		r := blockSizeReason(&st.BlockSizes[i])
		if r.Code != "" {
			list = append(list, r)
			feeds = feeds || r.Code != "store_refused"
		}
	}
	for i := range st.Engines {
		if e := &st.Engines[i]; !feeds && e.State == feed.StateRefused {
			return append(list, HealthReason{"feed_refused", "an engine's events cannot be used: " + e.Error, "look at the engine's KV events: all its blocks must have one size"})
		}
	}
	return list
}

// blockSizeReason is what is wrong with what is known of a model's blocks. Its code is empty if nothing is.
func blockSizeReason(b *blocksize.Status) HealthReason {
	others := len(b.Engines) > 1 || len(b.Engines) == 1 && b.Engines[0].Tokens != b.Tokens
	stored := len(b.Stores) == 0 // or its namespaces are of that size
	for _, s := range b.Stores {
		stored = stored || s.Tokens == b.Tokens
	}
	const leave = "leave block_size out, then the router learns it, or set it to the engines'"
	switch {
	case b.From == blocksize.Given && others:
		return HealthReason{"feed_refused", fmt.Sprintf("block_size %d is given, %s", b.Tokens, ranksBut(b.Engines, b.Tokens)), leave}
	case b.From == blocksize.Given && len(b.Engines) == 0 && !stored:
		return HealthReason{"store_refused", fmt.Sprintf("block_size %d is given, stores have blocks of %s tokens: nothing that they hold counts", b.Tokens, sizes(b.Stores)), leave}
	case b.From == blocksize.Engines && others:
		return HealthReason{
			"block_sizes_differ", fmt.Sprintf("engines of one model differ: %s; only blocks of %d count", ranksBut(b.Engines, 0), b.Tokens),
			"start all engines of the model with one block size, or give the ranks other model names",
		}
	case b.From == blocksize.Stores && len(b.Stores) > 1:
		return HealthReason{
			"block_sizes_differ", fmt.Sprintf("stores have blocks of %s tokens, and no engine's events say which size is in use; blocks of %d count", sizes(b.Stores), b.Tokens),
			"give the ranks events, or the engines' block_size",
		}
	}
	return HealthReason{}
}

// ranksBut names the ranks with each block size other than tokens.
func ranksBut(engines []blocksize.RanksOf, tokens int) string {
	var parts []string
	for _, e := range engines {
		if e.Tokens == tokens {
			continue
		}
		names, more := e.Ranks, ""
		if len(names) > maxNamed {
			names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(e.Ranks)-maxNamed)
		}
		text := make([]string, len(names))
		for i, id := range names {
			text[i] = strconv.Itoa(int(id))
		}
		if len(e.Ranks) == 1 {
			parts = append(parts, fmt.Sprintf("rank %s has blocks of %d tokens", text[0], e.Tokens))
		} else {
			parts = append(parts, fmt.Sprintf("ranks %s%s have blocks of %d tokens", strings.Join(text, ", "), more, e.Tokens))
		}
	}
	return strings.Join(parts, ", ")
}

// maxNamed is how many ranks or sizes a reason names.
const maxNamed = 8

// sizes lists the block sizes of namespaces.
func sizes(stores []blocksize.NamespacesOf) string {
	var parts []string
	for _, s := range stores[:min(len(stores), maxNamed)] {
		parts = append(parts, strconv.Itoa(s.Tokens))
	}
	return strings.Join(parts, " and ")
}
