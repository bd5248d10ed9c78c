package store

import (
	"github.com/kvconn/kvconn/store/internal/index"
)

const (
	// victimsPart is the part of a class that one scan chooses: a scan then looks at that
	// many entries for each eviction.
	victimsPart = 32
	minVictims  = 64
)

// chooseVictims scans a class for the next records to evict. If another class has a
// segment whose records are colder, or this class has nothing to evict, that segment is
// given up instead and the result is true.
func (s *Store) chooseVictims(c *class) (tookSegment bool) {
	p := s.space
	p.mu.Lock()
	ranges := make([]index.Range, len(c.segments))
	for i, g := range c.segments {
		ranges[i] = g.slots()
	}
	want := max(minVictims, int(c.slots/victimsPart))
	p.mu.Unlock()
	victims := s.table.Coldest(ranges, want)
	if g := s.colderSegment(c, victims); g != nil && s.giveUp(g, c) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.victims = victims
	if n := len(victims); n > 0 {
		c.scanned = victims[n-1].Order()
	}
	return false
}

// colderSegment returns the coldest unpinned segment of the other classes if its records
// were on average used before the first victim, or if there is no victim.
func (s *Store) colderSegment(c *class, victims []index.Victim) *segment {
	var best *segment
	limit := ^uint32(0)
	if len(victims) > 0 {
		limit = victims[0].Tick()
	}
	for _, other := range s.space.allClasses() {
		if other == c {
			continue
		}
		for _, g := range s.space.segmentsOf(other) {
			if heat, free := s.table.Heat(g.slots(), g.made); free && heat < limit && g.writing.Load() == 0 {
				best, limit = g, heat
			}
		}
	}
	return best
}

func (p *space) segmentsOf(c *class) []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*segment(nil), c.segments...)
}

func (p *space) takeVictims(c *class) []index.Victim {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := c.victims
	c.victims = nil
	return v
}

func (p *space) putVictims(c *class, v []index.Victim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.victims = v
}

func (p *space) victimsLeft(c *class) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(c.victims)
}

// coldInsert forgets the chosen victims of a class if a record was added among them: they
// are no more the next to go.
func (s *Store) coldInsert(in *index.Insertion) {
	p := s.space
	c := p.at(in.Ref).class
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(c.victims) > 0 && index.Order(in.Tick, in.Depth) <= c.scanned {
		c.victims = nil
	}
}
