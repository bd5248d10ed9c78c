package evictionbench

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
)

// publicTrace is the conversation trace of the FAST'25 paper on Mooncake. It is not part
// of the repository.
const publicTrace = "../../../../shared/data/conversation_trace.jsonl"

func loadPublicTrace(t *testing.T) []Request {
	t.Helper()
	f, err := os.Open(publicTrace)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there", publicTrace)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	trace, err := ReadTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	return trace
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

// TestPublicTraceHitRates reproduces rates that were computed independently, and checks
// that no other policy is better than the store's where a disk tier works.
func TestPublicTraceHitRates(t *testing.T) {
	trace := loadPublicTrace(t)
	reference := map[int]float64{1000: .0445, 10_000: .2116, 30_000: .3257, 50_000: .3546}
	capacities := []int{1000, 10_000, 30_000, 50_000}
	if raceEnabled {
		capacities = capacities[1:2] // twenty times slower
	}
	for _, capacity := range capacities {
		lru := HitRate(NewLRU(capacity, true), trace)
		if math.Abs(lru-reference[capacity]) > .00005 {
			t.Errorf("LRU at %d: %.4f, reference %.4f", capacity, lru, reference[capacity])
		}
		naive := HitRate(NewLRU(capacity, false), trace)
		s3 := HitRate(NewS3FIFO(capacity), trace)
		tiny := HitRate(NewTinyLFU(capacity), trace)
		own := HitRate(storePolicy(t, capacity), trace)
		t.Logf("%6d blocks: LRU head first %.4f, LRU %.4f, S3-FIFO %.4f, W-TinyLFU-like %.4f, store %.4f",
			capacity, naive, lru, s3, tiny, own)
		if capacity >= 10_000 && (own < s3 || own < tiny || own < naive || own < lru-.0005) {
			t.Errorf("%d blocks: another policy is better than the store's", capacity)
		}
	}
	if all := HitRate(NewLRU(1<<20, true), trace); math.Abs(all-.3664) > .00005 {
		t.Errorf("endless cache: %.4f, reference .3664", all)
	}
}

func TestTraceFormat(t *testing.T) {
	f, err := os.Open("testdata/small.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	trace, err := ReadTrace(f)
	if err != nil || len(trace) != 4 || len(trace[1].Blocks) != 3 {
		t.Fatalf("%v %v", trace, err)
	}
	// Block 0 is shared by all, block 1 by the second.
	if got := HitRate(NewLRU(100, true), trace); math.Abs(got-5./11) > 1e-9 {
		t.Errorf("hit rate %v", got)
	}
	if _, err := ReadTrace(strings.NewReader("{\n")); err == nil {
		t.Error("no error for half a line")
	}
}

// TestNoPolicyHoldsMoreThanItsCapacity replays a loop that is larger than the cache.
func TestNoPolicyHoldsMoreThanItsCapacity(t *testing.T) {
	const capacity = 100
	for name, c := range map[string]Cache{
		"lru": NewLRU(capacity, true), "s3": NewS3FIFO(capacity), "tiny": NewTinyLFU(capacity), "store": storePolicy(t, capacity),
	} {
		for i := range uint32(1000) {
			c.Use([]uint32{i})
		}
		held := 0
		for i := range uint32(1000) {
			held += probe(c, i)
		}
		if held > capacity {
			t.Errorf("%s holds %d of %d", name, held, capacity)
		}
	}
}

func probe(c Cache, k uint32) int {
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
