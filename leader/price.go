package leader

import (
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Tiers tells where records are and how fast they come from there. Its methods never wait.
type Tiers interface {
	// Present sets at[i] where the record of keys[i] is in the host tier, where a load does not
	// touch the disk.
	Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
	Speeds() Speeds
}

// Speeds are measured by store and workers. A speed of 0 is not measured: the tier is
// then taken as free.
type Speeds struct {
	// DiskBytesPerS is what the disk delivers, DiskLatencyS the time to a record's last
	// byte, DiskQueuedBytes what a new read waits behind.
	DiskBytesPerS   float64
	DiskLatencyS    float64
	DiskQueuedBytes int64
	// HostBytesPerS is what one rank copies out of the host tier.
	HostBytesPerS float64
}

// price decides how much of a hit is worth loading. The model:
//
//   - prefill of n tokens takes n / prefill speed; that attention grows with the prefix is
//     left out, which errs towards recomputing long prompts' ends;
//   - the disk is shared by all ranks: a block costs the bytes of all its shards that are
//     not in the host tier, and the whole load once the queue in front of it and the
//     latency of a read;
//   - the host tier is copied by each rank for itself: a block costs the bytes of its
//     largest shard;
//   - what is asked of a group's first shard holds for the others, as ranks load and evict
//     alike; ranks on other nodes are taken to be no slower than those here.
//
// The offer ends where prefill time saved less load time is largest.
type price struct {
	l     *Leader
	tiers Tiers
	// disk and host are the bytes of a block of each layer group, see above.
	disk, host []float64
	sized      bool
	// refusing is set while the last decision left something out. Loads must then be
	// faster than prefill by a margin before they are offered again, so that noise does
	// not flip decisions.
	refusing bool
	probed   time.Time
	learnt   learnt

	// Work space, one slice for each group: the load time in seconds of the blocks before
	// each boundary, and how many of them are read from disk.
	seconds [][]float64
	onDisk  [][]int
	onHost  []bool
}

// reacceptRatio is the share of the prefill time that a load may take to be offered after
// one was refused; without a refusal it is 1.
const reacceptRatio = 0.8

func (p *price) init(l *Leader) {
	n := len(l.groups)
	*p = price{
		l: l, tiers: l.opts.Tiers, disk: make([]float64, n), host: make([]float64, n),
		seconds: make([][]float64, n), onDisk: make([][]int, n),
	}
}

// tokensPerS is the prefill speed to decide with, 0 if it is not known.
func (p *price) tokensPerS() float64 {
	if v := p.l.opts.PrefillTokensPerS; v > 0 {
		return v
	}
	return p.learnt.tokensPerS()
}

// cut returns the boundary, in blocks, up to which loading r's blocks from first on saves
// most time: boundary itself, or less, or first.
func (p *price) cut(r *request, first, boundary int) int {
	if boundary == first {
		return boundary
	}
	cut := boundary
	if rate := p.tokensPerS(); rate > 0 && p.tiers != nil {
		cut = p.decide(r, first, boundary, float64(p.l.bs)/rate)
		p.refusing = cut < boundary
	}
	if r.decided {
		return cut
	}
	r.decided = true
	st := &p.l.stats
	switch cut {
	case boundary:
		st.DecisionsFull++
	case first:
		st.DecisionsRefused++
	default:
		st.DecisionsTrimmed++
	}
	return cut
}

// decide is cut for a prefill time of a block, in seconds.
func (p *price) decide(r *request, first, boundary int, blockS float64) int {
	s := p.tiers.Speeds()
	st := &p.l.stats
	st.LoadBytesPerS, st.LoadLatencyS, st.QueuedBytes = TierRates{Disk: s.DiskBytesPerS, Host: s.HostBytesPerS}, s.DiskLatencyS, s.DiskQueuedBytes
	p.size()
	c := p.costs(&s)
	if n := float64(boundary - first); c.worstS <= blockS && n*(blockS-c.worstS) > c.startS {
		return boundary // worth it even if all of it is on the slowest tier
	}
	p.sum(r, first, boundary, &c)
	best, saved := first, 0.0
	for b := first + 1; b <= boundary; b++ {
		if v := p.saved(first, b, blockS, &c); v > 0 && v >= saved {
			best, saved = b, v
		}
	}
	if best == boundary || best == first {
		return best
	}
	// The windows may have no blocks for that boundary.
	if w := p.l.windowBoundary(r, first, best); w == best || p.saved(first, w, blockS, &c) > 0 {
		return w
	}
	return first
}

// size learns the sizes of blocks, until all are known.
func (p *price) size() {
	if p.sized {
		return
	}
	p.sized = true
	for g := range p.l.groups {
		p.disk[g], p.host[g] = 0, 0
		for _, shard := range p.l.groups[g].shards {
			n := p.l.index.PayloadBytes(p.l.opts.Namespace, shard)
			p.sized = p.sized && n > 0
			p.disk[g] += float64(n)
			p.host[g] = max(p.host[g], float64(n))
		}
	}
}

// costs are times in seconds, with the margin in force.
type costs struct {
	// diskS and hostS are what a byte costs, startS what any load from disk does.
	diskS, hostS, startS float64
	// worstS is the time of one block of all groups from the slowest tier.
	worstS float64
}

func (p *price) costs(s *Speeds) costs {
	var c costs
	margin := 1.0
	if p.refusing {
		margin = 1 / reacceptRatio
	}
	if s.DiskBytesPerS > 0 {
		c.diskS = margin / s.DiskBytesPerS
		c.startS = margin*s.DiskLatencyS + c.diskS*float64(s.DiskQueuedBytes)
	}
	if s.HostBytesPerS > 0 {
		c.hostS = margin / s.HostBytesPerS
	}
	for g := range p.disk {
		c.worstS += max(p.disk[g]*c.diskS, p.host[g]*c.hostS)
	}
	return c
}

// sum fills in the work space for the blocks [first, boundary).
func (p *price) sum(r *request, first, boundary int, c *costs) {
	for g := range p.l.groups {
		p.onHost = slices.Grow(p.onHost[:0], boundary-first)[:boundary-first]
		clear(p.onHost)
		p.tiers.Present(p.l.opts.Namespace, p.l.groups[g].shards[0], r.keys[first:boundary], p.onHost)
		seconds, onDisk := append(p.seconds[g][:0], 0), append(p.onDisk[g][:0], 0)
		t, n := 0.0, 0
		for _, onHost := range p.onHost {
			if onHost {
				t += p.host[g] * c.hostS
			} else {
				t += p.disk[g] * c.diskS
				n++
			}
			seconds, onDisk = append(seconds, t), append(onDisk, n)
		}
		p.seconds[g], p.onDisk[g] = seconds, onDisk
	}
}

// saved is the time in seconds that an offer up to a boundary saves.
func (p *price) saved(first, boundary int, blockS float64, c *costs) float64 {
	v := float64(boundary-first) * blockS
	fromDisk := 0
	for g := range p.l.groups {
		begin := 0
		if p.l.opts.Handoff == nil {
			begin = max(0, p.l.groups[g].FirstBlock(boundary*p.l.bs, p.l.bs)-first)
		}
		v -= p.seconds[g][boundary-first] - p.seconds[g][begin]
		fromDisk += p.onDisk[g][boundary-first] - p.onDisk[g][begin]
	}
	if fromDisk > 0 {
		v -= c.startS
	}
	return v
}

// probeDue reports whether [Options.Probe] is to be called, and takes it that it is.
func (p *price) probeDue() bool {
	if !p.refusing || p.l.opts.Probe == nil {
		return false
	}
	now := p.l.opts.Now()
	if now.Sub(p.probed) < p.l.opts.ProbeInterval {
		return false
	}
	p.probed = now
	return true
}

// learn measures the engine: see [learnt].
func (l *Leader) learn(m *connector.StepRequest, now time.Time) {
	var prefill, total int
	follows := false
	for i := range m.Scheduled {
		s := &m.Scheduled[i]
		r := l.requests.find(s.Request)
		if r == nil {
			total += s.Count
			continue
		}
		decodes := s.Computed >= r.prompt
		if decodes {
			total += min(s.Count, 1) // those of several steps may be told together
		} else {
			total += s.Count
			prefill += s.Count
		}
		follows = follows || (r.step != 0 && r.step == l.steps-1 && s.Computed <= r.computed && (!decodes || s.Count <= 1))
		r.step, r.computed = l.steps, s.Computed+s.Count
	}
	// A step of many decodes says little of prefill, and one with loads in it waits for them.
	if prefill < l.opts.MinLearnTokens || 4*prefill < 3*total || (l.opts.Handoff != nil && len(m.Allocs) > 0) {
		total = 0
	}
	l.price.learnt.step(now, total, follows)
}
