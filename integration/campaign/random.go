package campaign

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// RandomScript returns up to three clauses for a store, drawn from g.
func RandomScript(g *rand.Rand) fault.Script {
	var s fault.Script
	for range 1 + g.IntN(3) {
		s = append(s, randomClause(g))
	}
	return s
}

func pick[T any](g *rand.Rand, of ...T) T { return of[g.IntN(len(of))] }

// randomClause is a fault of any kind but silent changes of written bytes (drop): the store
// cannot notice these, and flips already test that reads are verified.
func randomClause(g *rand.Rand) fault.Clause {
	c := fault.Clause{
		Kind: pick(g, fault.Any, fault.Read, fault.Write, fault.Write, fault.Sync, fault.Sync, fault.Open, fault.Create,
			fault.Remove, fault.Rename, fault.List, fault.Allocate, fault.Stat, fault.Free),
		Pattern: pick(g, "**", "segments/**", "index/**", "segments/*", "index/*.log", "index/*.sst", "namespaces/*"),
	}
	switch e := g.IntN(10); {
	case e < 6:
		c.Effect.Errno = pick(g, syscall.EIO, syscall.EIO, syscall.ENOSPC, syscall.EMFILE)
	case e < 8:
		c.Effect.Delay = pick(g, time.Millisecond, 20*time.Millisecond, time.Second)
	case c.Kind == fault.Write:
		c.Effect.Torn = true
	case c.Kind == fault.Read:
		c.Effect.Flip = 1 + g.IntN(3)
	case c.Kind == fault.Free:
		c.Effect.Full = true
	default:
		c.Effect.Errno = syscall.EIO
	}
	switch g.IntN(4) {
	case 0:
		c.After, c.For = int64(g.IntN(60)), int64(1+g.IntN(60))
	case 1:
		c.Prob, c.Seed = pick(g, 0.01, 0.1, 0.5), uint64(g.IntN(1000))
	case 2:
		c.Until = time.Duration(20+g.IntN(400)) * time.Millisecond
	case 3:
		c.Every = int64(2 + g.IntN(20))
	}
	if c.Effect.Delay >= time.Second {
		c.For, c.Every, c.Prob, c.Seed = int64(1+g.IntN(3)), 0, 0, 0
	}
	return c
}

// sharedDisk is the size of a disk that is smaller than the cap and min_free together.
const sharedDisk = 16 << 20

// RandomCase returns a case that follows from a seed.
func RandomCase(seed uint64) Case {
	g := rand.New(rand.NewPCG(seed, 1))
	c := Case{Cap: pick[int64](g, 12<<20, sharedDisk, calmCap), Script: RandomScript(g)}
	if c.Cap == sharedDisk && rand.New(rand.NewPCG(seed, 2)).IntN(2) == 0 {
		c.Disk = sharedDisk // so that it is the disk that limits the store, not the cap
	}
	chain := 0
	add := func(verb string, args ...string) { c.Steps = append(c.Steps, Step{verb, args}) }
	records := func(chain int) []string {
		size := Narrow
		if chain%2 == 1 {
			size = Wide
		}
		return []string{size.String(), strconv.Itoa(chain), strconv.Itoa(4 + chain*7%24)}
	}
	save := func() { chain++; add("save", records(chain)...) }
	for range 2 + g.IntN(30) {
		save()
	}
	add("sync")
	add("faults", "on")
	for range 4 + g.IntN(24) {
		switch g.IntN(14) {
		case 0, 1, 2, 3, 4:
			save()
		case 5, 6, 7:
			add("read", records(1+g.IntN(chain))...)
		case 8:
			add("sync")
		case 9:
			add("hold", records(1+g.IntN(chain))...)
		case 10:
			add("release")
		case 11:
			add("wait", fmt.Sprint(time.Duration(g.IntN(100))*time.Millisecond))
		case 12:
			add("stop")
			add("start")
		case 13:
			add("kill")
			add("start")
		}
	}
	add("faults", "off")
	return c
}
