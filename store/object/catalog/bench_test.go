package catalog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/object/format"
)

// aMillion are lists of a million records, in objects of n, and their chains.
func aMillion(b *testing.B, n int) (lists []format.List, chains [][]connector.Key) {
	g := seed.Random(b, 0)
	for i := range 122 {
		chain := randomKeys(g, 8192)
		chains = append(chains, chain)
		lists = append(lists, format.List{Objects: chainOf(uint64(10_000*i), chain, n)})
	}
	return lists, chains
}

// BenchmarkPrefix is the look-up of a chain of 8,192 keys among a million records, as index.BenchmarkLookup
// -short is on disk.
func BenchmarkPrefix(b *testing.B) {
	for _, records := range []int{16, 4, 1} {
		b.Run(fmt.Sprintf("objects of %d", records), func(b *testing.B) { benchmarkPrefix(b, records) })
	}
}

func benchmarkPrefix(b *testing.B, records int) {
	lists, chains := aMillion(b, records)
	c := newCatalog(b, Options{})
	for i := range lists {
		c.Apply(&lists[i])
	}
	shards := []connector.Shard{0}
	var p Pins
	var times []time.Duration
	i := 0
	for b.Loop() {
		chain := chains[i*7919%len(chains)]
		i++
		began := time.Now()
		found := c.Prefix(testSpace, shards, chain, &p)
		times = append(times, time.Since(began))
		if found != len(chain) {
			b.Fatal(found)
		}
		c.Unpin(&p)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[0].Nanoseconds()), "min-ns")
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "median-ns")
}

// BenchmarkApply is a million records that come by and by.
func BenchmarkApply(b *testing.B) { benchmarkApply(b, func(*Catalog) {}) }

// BenchmarkJoin is the joining of a node: a million records.
func BenchmarkJoin(b *testing.B) {
	benchmarkApply(b, func(c *Catalog) { c.Reserve(122 * 8192) })
}

func benchmarkApply(b *testing.B, prepare func(*Catalog)) {
	lists, _ := aMillion(b, 16)
	for b.Loop() {
		c := newCatalog(b, Options{})
		prepare(c)
		for i := range lists {
			c.Apply(&lists[i])
		}
		b.ReportMetric(float64(c.Stats().IndexBytes)/122/8192, "B/record")
		_ = c.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/122/8192, "ns/record")
}
