package index

import "github.com/kvconn/kvconn/store/hashtable"

const (
	// Up to a load of 7/8 few records lie outside their own bucket.
	maxLoadNum, maxLoadDen = 7, 8
	// minBuckets is the size of the first region.
	minBuckets = 512
	// moveAhead is how many buckets are moved with each record added while the table grows.
	// When the last one is moved the table has 5% more records than at the beginning: the old
	// region never gets full, and the next growth is far.
	moveAhead = 2
	// giveBytes are given back at one time: a few huge pages. A power of two.
	giveBytes = 8 << 20
	// keepBytes of the front are not given back before the end, or giveBytes if that is less:
	// the first record that wraps must not have to wait, under the lock, for a page.
	keepBytes = 2 << 20
)

// makeRoom makes room for one more record, a little at a time: a table that is full gets a
// next region half as large again (less memory stands empty than with doubling), and each
// record that is added moves the next two buckets over. Where hashes belong rises with
// them in both regions: what belongs before the bucket moved last is in the next region,
// all else in the old one, and a lookup looks into one.
func (t *Table) makeRoom() {
	if t.next == nil {
		room := len(t.region.Buckets) * hashtable.BucketSlots
		if t.region != &t.blank && (t.count+1)*maxLoadDen <= room*maxLoadNum {
			return
		}
		t.grow()
	}
	for n := 0; n < moveAhead && t.next != nil; n++ {
		t.move()
	}
}

// Growing reports whether the table is being moved into a larger hash table.
func (t *Table) Growing() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.next != nil
}

// nextBuckets is the size of the region that comes after this one.
func (t *Table) nextBuckets() int {
	if t.region == &t.blank {
		return minBuckets
	}
	return len(t.region.Buckets) + (len(t.region.Buckets)+1)/2
}

// mapRegion maps a region, and ends the process if the system does not have the memory, as with any
// other.
func mapRegion(buckets int) *hashtable.Region {
	r, err := hashtable.NewRegion(buckets)
	if err != nil {
		panic("index: cannot map the hash table: " + err.Error())
	}
	return r
}

// grow makes the next region, or takes the one that was made ahead.
func (t *Table) grow() {
	next, buckets := t.ahead, t.nextBuckets()
	t.ahead = nil
	if next != nil && len(next.Buckets) != buckets {
		next.Free()
		next = nil
	}
	if next == nil {
		next = mapRegion(buckets)
	}
	if t.region == &t.blank {
		t.region = next
		return
	}
	t.next = next
}

// move takes the records that belong in the next bucket over to the next region.
func (t *Table) move() {
	old, home := t.region, t.moved
	t.moved++
	old.Move(home, t.next, func(r Ref) uint64 { return t.entry(r).hash() })
	if t.moved == len(old.Buckets) {
		t.emptied.Free() // nil but where the table grew twice without populate
		t.emptied, t.region, t.next, t.moved = old, t.next, nil, 0
	}
}

// giveBack gives the system the memory that the growth has emptied. It takes the kernel a while,
// so the table's lock is not held meanwhile.
func (t *Table) giveBack() {
	t.mu.Lock()
	emptied := t.emptied
	t.emptied = nil
	part, r := t.emptiedPart()
	t.mu.Unlock()
	emptied.Free()
	if r != nil {
		r.GiveBack(part)
	}
}

// emptiedPart returns the memory of the first buckets of the region that is being moved, which are
// empty but for records that belong at the region's end, and the region with giving held; or nil.
func (t *Table) emptiedPart() (part []byte, r *hashtable.Region) {
	if !t.givesSome() {
		return nil, nil
	}
	return t.region.Emptied(t.moved, t.giveBytes, t.keptBytes()), t.region
}

func (t *Table) keptBytes() int { return min(keepBytes, t.giveBytes) }

// givesSome reports whether enough of the old region is empty to be given back.
func (t *Table) givesSome() bool {
	return t.moved*hashtable.BucketBytes-t.region.GivenBytes() >= t.giveBytes
}

// moveAll ends growth.
func (t *Table) moveAll() {
	for t.next != nil {
		t.move()
	}
}

// hashBytes is the memory of the hash tables in use: while the table grows, that of the
// old one which was not given back and that of the next which was filled.
func (t *Table) hashBytes() int64 {
	n := t.region.Held(t.keptBytes())
	if t.emptied != nil {
		n += t.emptied.Held(t.keptBytes())
	}
	if t.next != nil {
		n += int64(float64(t.next.Bytes()) * float64(t.moved) / float64(len(t.region.Buckets)))
	}
	return n
}
