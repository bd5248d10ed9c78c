package replay

import "slices"

type rank struct {
	gpu     *gpuCache
	node    int
	queue   []int32 // requests that wait for their turn, in order of arrival
	ready   []int32 // requests that are loaded and wait for prefill
	loading int     // requests that load
	running int
	busy    bool // in prefill
	// predicted are the blocks that the router counts as in the rank's GPU because it has placed a prompt with them there.
	predicted map[int32]prediction
}

// prediction is of a block: it counts until a time, and as long as prompts with it wait for their prefill.
type prediction struct {
	until   float64
	waiting int
}

// predict notes that the router counts the blocks of a prompt as in the rank's GPU until a time, and as long as it waits.
func (k *rank) predict(blocks []int32, until float64) {
	for _, b := range blocks {
		p := k.predicted[b]
		k.predicted[b] = prediction{max(p.until, until), p.waiting + 1}
	}
}

// arrived notes that a prompt waits no longer: its blocks count until their time is over.
func (k *rank) arrived(blocks []int32) {
	for _, b := range blocks {
		p := k.predicted[b]
		p.waiting--
		k.predicted[b] = p
	}
}

// seen returns how many blocks at the head of a prompt the router takes for being in the rank's GPU.
func (k *rank) seen(blocks []int32, now float64) int {
	n := k.gpu.prefix(blocks)
	for n < len(blocks) {
		if p := k.predicted[blocks[n]]; p.until <= now && p.waiting == 0 && !k.gpu.has(blocks[n]) {
			break
		}
		n++
	}
	return n
}

// admit takes requests from the queue as long as the rank can serve them.
func (s *simulation) admit(k *rank) {
	for len(k.queue) > 0 && k.running < s.opts.MaxRunning {
		if !s.opts.OverlapLoads && (k.busy || k.loading > 0 || len(k.ready) > 0) {
			return
		}
		request := k.queue[0]
		if !k.gpu.hold(s.trace.Requests[request].Blocks) {
			return
		}
		k.queue = k.queue[1:]
		k.running++
		s.begin(k, request)
	}
}

// begin finds the prefix of an admitted request and starts to load it.
func (s *simulation) begin(k *rank, request int32) {
	r, f, n := &s.trace.Requests[request], &s.flights[request], &s.nodes[k.node]
	f.gpu = k.gpu.prefix(r.Blocks)
	f.disk = max(n.disk.prefix(r.Blocks)-f.gpu, 0)
	f.object = max(s.object.prefix(r.Blocks)-f.gpu-f.disk, 0)
	f.use = s.cut(r, f, n)
	fromDisk := s.bytes(r, f.gpu, min(f.use, f.gpu+f.disk))
	fromObject := s.bytes(r, f.gpu+f.disk, f.use)
	if fromDisk > 0 {
		n.diskRead += fromDisk
		s.load(s.opts.DiskDelay, task{request: request, phase: phaseDiskLoad, work: fromDisk})
	}
	if fromObject > 0 {
		n.objectRead += fromObject
		s.load(s.opts.ObjectDelay, task{request: request, phase: phaseObjectLoad, work: fromObject})
	}
	if f.loads == 0 {
		s.makeReady(k, request)
		return
	}
	k.loading++
}

// load starts a load, after the tier's delay.
func (s *simulation) load(delay float64, t task) {
	s.flights[t.request].loads++
	s.seq++
	t.seq = s.seq
	if delay > 0 {
		t.due, t.delayed = s.now+delay, true
		s.timers.Push(t)
		return
	}
	s.transfer(t)
}

func (s *simulation) transfer(t task) {
	t.delayed = false
	n := &s.nodes[s.ranks[s.flights[t.request].rank].node]
	if t.phase == phaseDiskLoad {
		n.diskLink.start(s.now, t)
		return
	}
	n.objectLink.start(s.now, t)
}

func (s *simulation) bytes(r *Request, from, to int) float64 {
	return float64(max(s.trace.tokensOf(r, to)-s.trace.tokensOf(r, from), 0)) * s.opts.BytesPerToken
}

// cut returns how many blocks of the prefix that was found had better be loaded than computed. Between the
// cuts that it tries both times are linear.
func (s *simulation) cut(r *Request, f *flight, n *node) int {
	onDisk, all := f.gpu+f.disk, f.gpu+f.disk+f.object
	if s.opts.AlwaysLoad {
		return all
	}
	best := f.gpu
	compute := func(use int) float64 {
		return float64(r.InputTokens-s.trace.tokensOf(r, use)) / s.opts.PrefillTokensPerS
	}
	least := compute(best)
	diskTime := s.bytes(r, f.gpu, onDisk)/n.diskLink.share(1) + s.opts.DiskDelay
	if f.disk == 0 {
		diskTime = 0
	} else if t := diskTime + compute(onDisk); t < least {
		best, least = onDisk, t
	}
	if f.object > 0 {
		objectTime := s.bytes(r, onDisk, all)/n.objectLink.share(1) + s.opts.ObjectDelay
		if max(diskTime, objectTime)+compute(all) < least {
			best = all
		}
	}
	return best
}

// ended continues a request whose phase is over.
func (s *simulation) ended(t *task) {
	k := &s.ranks[s.flights[t.request].rank]
	switch t.phase {
	case phaseDiskLoad, phaseObjectLoad:
		if t.delayed {
			s.transfer(*t)
			return
		}
		f := &s.flights[t.request]
		if f.loads--; f.loads == 0 {
			k.loading--
			s.makeReady(k, t.request)
		}
	case phasePrefill:
		s.prefilled(k, t.request)
	case phaseDecode:
		s.finished(k, t.request)
	}
}

// makeReady lets a request that is loaded be computed when its turn comes, by arrival.
func (s *simulation) makeReady(k *rank, request int32) {
	at := len(k.ready)
	for at > 0 && s.flights[k.ready[at-1]].arrival > s.flights[request].arrival {
		at--
	}
	k.ready = slices.Insert(k.ready, at, request)
	s.compute(k)
}

func (s *simulation) compute(k *rank) {
	if k.busy || len(k.ready) == 0 {
		return
	}
	request := k.ready[0]
	k.ready = k.ready[1:]
	k.busy = true
	r, f := &s.trace.Requests[request], &s.flights[request]
	// Another request may have computed more of the prefix since this one was admitted.
	if now := k.gpu.prefix(r.Blocks); now > f.use {
		f.disk = min(f.disk, f.use-f.gpu)
		f.object = f.use - f.gpu - f.disk
		f.gpu += now - f.use
		f.use = now
	}
	computed := max(r.InputTokens-s.trace.tokensOf(r, f.use), min(r.InputTokens, 1)) // the last token is never cached
	s.tally.found(s.trace, r, f, computed)
	s.after(float64(computed)/s.opts.PrefillTokensPerS, request, phasePrefill)
}

// prefilled ends a prefill: the first token is there, and the prompt on all tiers.
func (s *simulation) prefilled(k *rank, request int32) {
	r := &s.trace.Requests[request]
	s.tally.ttft = append(s.tally.ttft, s.now-s.flights[request].arrival)
	s.tracker.PrefillDone(s.id(request))
	if s.opts.PredictTTL > 0 {
		k.arrived(r.Blocks)
	}
	k.gpu.validate(r.Blocks)
	s.save(&s.nodes[k.node], r.Blocks)
	s.object.use(r.Blocks)
	k.busy = false
	s.after(float64(r.OutputTokens)*s.opts.DecodeTokenTime, request, phaseDecode)
	s.compute(k)
	s.admit(k)
}

// save puts a prompt on a node's disk, or the part of it that the disk can write in time.
func (s *simulation) save(n *node, blocks []int32) {
	if s.opts.SaveBytesPerS == 0 {
		n.disk.use(blocks)
		return
	}
	bytesPerBlock := float64(s.trace.BlockTokens) * s.opts.BytesPerToken
	n.saveBudget = min(n.saveBudget+float64((s.now-n.savedAt)*s.opts.SaveBytesPerS), max(s.opts.SaveBytesPerS, bytesPerBlock))
	n.savedAt = s.now
	kept := n.disk.prefix(blocks)
	for kept < len(blocks) && n.saveBudget >= bytesPerBlock {
		n.saveBudget -= bytesPerBlock
		kept++
	}
	n.dropped += float64(len(blocks)-kept) * bytesPerBlock
	n.disk.use(blocks[:kept])
}

func (s *simulation) finished(k *rank, request int32) {
	k.gpu.release(s.trace.Requests[request].Blocks)
	s.tracker.Finish(s.id(request))
	k.running--
	s.running--
	s.tally.end = s.now
	s.admit(k)
}
