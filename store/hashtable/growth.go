package hashtable

const (
	// Up to a load of 7/8 few records lie outside their own bucket.
	MaxLoadNum, MaxLoadDen = 7, 8
	// MinBuckets is the size of the first region.
	MinBuckets = 512
	// MoveAhead is how many buckets are moved with each record added while the table grows.
	// When the last one is moved the table has 5% more records than at the beginning: the old
	// region never gets full, and the next growth is far.
	MoveAhead = 2
	// GiveBytes are given back at one time: a few huge pages. A power of two.
	GiveBytes = 8 << 20
	// KeepBytes of the front are not given back before the end, or GiveBytes if that is less:
	// the first record that wraps must not have to wait, under the lock, for a page.
	KeepBytes = 2 << 20
)

// Growth is a hash table that grows a little at a time. It is not safe for concurrent use.
type Growth struct {
	// Region holds the hash table. While it grows Next is not nil, and holds what belongs in
	// the first Moved buckets of Region.
	Region, Next *Region
	Moved        int
	Ahead        *Region // mapped for the next growth, or nil
	Emptied      *Region // what the last growth left, to be unmapped, or nil
	GiveBytes    int     // see the constant; tests make it small
	blank        Region  // stands for a region where there is none
	blankBucket  [1]Bucket
}

// Init makes an empty table.
func (g *Growth) Init() {
	g.blank.Buckets = g.blankBucket[:]
	g.Region, g.GiveBytes = &g.blank, GiveBytes
}

// Blank reports whether there is no region yet.
func (g *Growth) Blank() bool { return g.Region == &g.blank }

// Free unmaps the table, which is empty then.
func (g *Growth) Free() {
	for _, r := range []*Region{g.Region, g.Next, g.Ahead, g.Emptied} {
		r.Free()
	}
	g.Region, g.Next, g.Ahead, g.Emptied, g.Moved = &g.blank, nil, nil, nil, 0
}

// MakeRoom makes room for one more record than count, a little at a time: a table that is full gets a
// next region half as large again (less memory stands empty than with doubling), and each
// record that is added moves the next two buckets over. Where hashes belong rises with
// them in both regions: what belongs before the bucket moved last is in the next region,
// all else in the old one, and a lookup looks into one. hash is that of a record in the table.
func (g *Growth) MakeRoom(count int, hash func(Ref) uint64) {
	if g.Next == nil {
		room := len(g.Region.Buckets) * BucketSlots
		if !g.Blank() && (count+1)*MaxLoadDen <= room*MaxLoadNum {
			return
		}
		g.grow()
	}
	for n := 0; n < MoveAhead && g.Next != nil; n++ {
		g.move(hash)
	}
}

// NextBuckets is the size of the region that comes after this one.
func (g *Growth) NextBuckets() int {
	if g.Blank() {
		return MinBuckets
	}
	return len(g.Region.Buckets) + (len(g.Region.Buckets)+1)/2
}

// MapRegion maps a region, and ends the process if the system does not have the memory, as with any
// other.
func MapRegion(buckets int) *Region {
	r, err := NewRegion(buckets)
	if err != nil {
		panic("index: cannot map the hash table: " + err.Error())
	}
	return r
}

// grow makes the next region, or takes the one that was made ahead.
func (g *Growth) grow() {
	next, buckets := g.Ahead, g.NextBuckets()
	g.Ahead = nil
	if next != nil && len(next.Buckets) != buckets {
		next.Free()
		next = nil
	}
	if next == nil {
		next = MapRegion(buckets)
	}
	if g.Blank() {
		g.Region = next
		return
	}
	g.Next = next
}

// move takes the records that belong in the next bucket over to the next region.
func (g *Growth) move(hash func(Ref) uint64) {
	old, home := g.Region, g.Moved
	g.Moved++
	old.Move(home, g.Next, hash)
	if g.Moved == len(old.Buckets) {
		g.Emptied.Free() // nil but where the table grew twice without populate
		g.Emptied, g.Region, g.Next, g.Moved = old, g.Next, nil, 0
	}
}

// MoveAll ends growth.
func (g *Growth) MoveAll(hash func(Ref) uint64) {
	for g.Next != nil {
		g.move(hash)
	}
}

// EmptiedPart returns the memory of the first buckets of the region that is being moved, which are
// empty but for records that belong at the region's end, and the region with giving held; or nil.
func (g *Growth) EmptiedPart() (part []byte, r *Region) {
	if !g.GivesSome() {
		return nil, nil
	}
	return g.Region.Emptied(g.Moved, g.GiveBytes, g.keptBytes()), g.Region
}

func (g *Growth) keptBytes() int { return min(KeepBytes, g.GiveBytes) }

// GivesSome reports whether enough of the old region is empty to be given back.
func (g *Growth) GivesSome() bool {
	return g.Moved*BucketBytes-g.Region.GivenBytes() >= g.GiveBytes
}

// Bytes is the memory in use: while the table grows, that of the
// old region which was not given back and that of the next which was filled.
func (g *Growth) Bytes() int64 {
	n := g.Region.Held(g.keptBytes())
	if g.Emptied != nil {
		n += g.Emptied.Held(g.keptBytes())
	}
	if g.Next != nil {
		n += int64(float64(g.Next.Bytes()) * float64(g.Moved) / float64(len(g.Region.Buckets)))
	}
	return n
}
