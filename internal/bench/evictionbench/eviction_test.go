package evictionbench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/trace"
	"github.com/kvconn/kvconn/router/replay"
)

func read(t *testing.T, r io.Reader) *replay.Trace {
	t.Helper()
	tr, err := replay.Read(r, replay.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func storePolicy(t *testing.T, capacity int) Cache {
	t.Helper()
	c, free, err := NewStore(capacity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(free)
	return c
}

// checkHitRates checks that the table of ADR 3 says what the policies do, and that none is better than the
// store's in a cache of at least disk blocks, where a disk tier works.
func checkHitRates(t *testing.T, name string, tr *replay.Trace, disk int, capacities ...int) {
	t.Helper()
	const endless = 1 << 20
	for _, capacity := range append(capacities, endless) {
		rates := make([]float64, 0, 5)
		for _, c := range []Cache{
			NewLRU(capacity, false), NewLRU(capacity, true), NewS3FIFO(capacity), NewTinyLFU(capacity), storePolicy(t, capacity),
		} {
			rates = append(rates, HitRate(c, tr))
		}
		row := fmt.Sprintf("| %s | %d,%03d |", name, capacity/1000, capacity%1000)
		if row = strings.Replace(row, " 0,", " ", 1); capacity == endless {
			row = fmt.Sprintf("| %s | endless |", name)
		}
		for _, rate := range rates {
			row += fmt.Sprintf(" %s |", strings.TrimPrefix(fmt.Sprintf("%.4f", rate), "0"))
		}
		docs.Says(t, "adr/0003-store.md", row)
		if own := rates[len(rates)-1]; capacity >= disk && slices.Max(rates) > own+.0005 {
			t.Errorf("%d blocks: another policy is better than the store's", capacity)
		}
	}
}

func TestHitRatesOnHalfOfTheTrace(t *testing.T) {
	checkHitRates(t, "half", read(t, trace.Half(t)), 15_000, 500, 5_000, 15_000, 25_000)
}

func TestHitRatesOnTheWholeTrace(t *testing.T) {
	tr := read(t, trace.Whole(t))
	checkHitRates(t, "whole", tr, 10_000, 1000, 10_000, 30_000, 50_000)
	// What others computed for the same trace.
	for capacity, reference := range map[int]float64{1000: .0445, 10_000: .2116, 30_000: .3257, 50_000: .3546, 1 << 20: .3664} {
		if got := HitRate(NewLRU(capacity, true), tr); math.Abs(got-reference) > .00005 {
			t.Errorf("LRU of %d blocks: %.4f, reference %.4f", capacity, got, reference)
		}
	}
}

func TestHitRateCountsPrefixes(t *testing.T) {
	tr := &replay.Trace{Requests: []replay.Request{
		{Blocks: []int32{0, 1}}, {Blocks: []int32{0, 1, 2}}, {Blocks: []int32{0, 3}}, {Blocks: []int32{0, 1, 4, 5}},
	}}
	if got := HitRate(NewLRU(100, true), tr); math.Abs(got-5./11) > 1e-9 {
		t.Errorf("hit rate %v", got)
	}
}

// TestNoPolicyHoldsMoreThanItsCapacity uses more blocks than the cache can hold.
func TestNoPolicyHoldsMoreThanItsCapacity(t *testing.T) {
	const capacity = 100
	for name, c := range map[string]Cache{
		"lru": NewLRU(capacity, true), "s3": NewS3FIFO(capacity), "tiny": NewTinyLFU(capacity), "store": storePolicy(t, capacity),
	} {
		for i := range int32(1000) {
			c.Use([]int32{i})
		}
		held := 0
		for i := range int32(1000) {
			held += probe(c, i)
		}
		if held > capacity {
			t.Errorf("%s holds %d of %d", name, held, capacity)
		}
	}
}

func probe(c Cache, k int32) int {
	has := false
	switch c := c.(type) {
	case byKey:
		has = c.has(k)
	case *prefixLRU:
		for _, r := range c.table.Describe(c.slots, nil) {
			has = has || r.ID.Key == keyOf(k)
		}
	default:
		panic(fmt.Sprintf("%T", c))
	}
	if has {
		return 1
	}
	return 0
}
