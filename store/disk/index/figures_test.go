package index

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/hashtable"
)

// The sizes of ADR 3. The table grows by half at a time, so the numbers of records are of one such step.
func TestMemoryOfARecord(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != entryBytes {
		t.Errorf("an entry has %d bytes, not %d", n, entryBytes)
	}
	least, most, choice := 1e9, 0.0, 0.0
	for n := 100_000; n < 150_000; n += 5000 {
		table, _ := fill(t, n, 1000)
		per := float64(table.MemoryBytes()-New().MemoryBytes()) / float64(n)
		least, most = min(least, per), max(most, per)
		choice = max(choice, float64(table.cold.memoryBytes())/float64(n))
	}
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("One entry of %d bytes a slot", entryBytes))
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("%.0f to %.0f bytes a record", least, most))
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("It costs %.1f bytes a slot", choice))
}

// What ADR 3 says of how much is done at one time.
func TestFiguresOfTheIndex(t *testing.T) {
	for _, text := range []string{
		fmt.Sprintf("buckets (%d references and %d one-byte tags)", hashtable.BucketSlots, hashtable.BucketSlots),
		fmt.Sprintf("load between %.2f and %.3f", float64(hashtable.MaxLoadNum)/hashtable.MaxLoadDen/1.5, float64(hashtable.MaxLoadNum)/hashtable.MaxLoadDen),
		fmt.Sprintf("groups of %d keys", probeGroup),
		fmt.Sprintf("given back %d MiB at a time", hashtable.GiveBytes>>20),
		fmt.Sprintf("The front's first %d MiB now stay", hashtable.KeepBytes>>20),
		fmt.Sprintf("under the read lock, %s records at a time", thousands(placeRun)),
		fmt.Sprintf("Long ago is %d ticks, or a %dth of what lies between", parentLag, lagPart),
		fmt.Sprintf("all entries are gone over in turn, %s at a time", thousands(agingRun)),
		fmt.Sprintf("Each %d slots that lie side by side have a bound", groupSlots),
		fmt.Sprintf("ends with %d victims or after %d groups (%s entries)", enoughVictims, choiceGroups, thousands(choiceGroups*groupSlots)),
		fmt.Sprintf("the %d coldest records seen go", seenVictims),
		fmt.Sprintf("sampled (%s entries)", thousands(sampleGroups*groupSlots)),
	} {
		docs.Says(t, "adr/0003-store.md", text)
	}
	if agingCycle != 1<<30 || recency.MaxAge != 1<<30 || hashtable.MoveAhead != 2 {
		t.Errorf("all entries are gone over in %d ticks, to an age of %d; %d buckets move", agingCycle, recency.MaxAge, hashtable.MoveAhead)
	}
	docs.Says(t, "adr/0003-store.md", "once in 2^30 ticks: what was not used for 2^30 is given that age")
	docs.Says(t, "adr/0003-store.md", "moves the next two buckets over")
}

// thousands is a number as documents write it.
func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
