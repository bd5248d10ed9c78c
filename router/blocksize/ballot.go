package blocksize

// engine is what is known of the engine that a feed follows. It has no vote before it says a size: tokens is 0 then.
type engine struct {
	rank      int32
	tokens    int
	connected bool
	// counts says that its vote is one of those that decide.
	counts bool
}

func (e *engine) live() bool { return e.connected && e.tokens != 0 }

// ballot is the engines and their votes. The votes of connected engines count. If no connected engine has one, those that counted
// last still do, so that engines that go down one after another change nothing by that; if none of those is left, all count. A change
// looks at the other engines only when the first one is connected or the last such vote is gone: thousands connect at one time.
type ballot struct {
	engines map[any]*engine
	// votes are those that count, by size.
	votes map[int]int
	// said and live count the engines that have said a size, and those of them that are connected.
	said, live int
}

func newBallot() ballot { return ballot{engines: make(map[any]*engine), votes: make(map[int]int)} }

// change changes what is known of a feed's engine.
func (b *ballot) change(feed any, what func(*engine)) {
	e := b.engines[feed]
	if e == nil {
		e = new(engine)
		b.engines[feed] = e
	}
	before := b.live
	b.tally(e, -1)
	what(e)
	if before > 0 && b.live+one(e.live()) > 0 {
		e.counts = e.live()
	}
	b.tally(e, 1)
	if before == 0 && b.live > 0 {
		b.elect()
		return
	}
	b.fill()
}

// forget forgets a feed's engine.
func (b *ballot) forget(feed any) {
	e := b.engines[feed]
	if e == nil {
		return
	}
	b.tally(e, -1)
	delete(b.engines, feed)
	b.fill()
}

// fill has all votes count if none does.
func (b *ballot) fill() {
	if len(b.votes) == 0 && b.said > 0 {
		b.elect()
	}
}

// elect chooses the votes that count.
func (b *ballot) elect() {
	clear(b.votes)
	for _, e := range b.engines {
		if e.counts = e.tokens != 0 && (e.connected || b.live == 0); e.counts {
			b.votes[e.tokens]++
		}
	}
}

// tally adds an engine to what is counted, by 1, or takes it out, by -1.
func (b *ballot) tally(e *engine, by int) {
	b.said += by * one(e.tokens != 0)
	b.live += by * one(e.live())
	if !e.counts {
		return
	}
	if b.votes[e.tokens] += by; b.votes[e.tokens] == 0 {
		delete(b.votes, e.tokens)
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
