package feed

import (
	"slices"
	"testing"
)

// A process that was started again may be at the very number that was expected of the old one.
func TestTheExpectedNumberProvesNothingOnANewConnection(t *testing.T) {
	var s progress
	for seq, want := range []verdict{inOrder, inOrder, inOrder} {
		if got := s.judge(uint64(seq), 0); got != want {
			t.Fatalf("batch %d: verdict %d", seq, got)
		}
		s.applied(uint64(seq), 0)
	}
	s.connected()
	if got := s.judge(3, 0); got != restarted {
		t.Errorf("verdict %d", got)
	}
	s.forget()
	s.applied(3, 0)
	if got := s.judge(4, 0); got != inOrder {
		t.Errorf("the next one: verdict %d", got)
	}
	s.applied(4, 0)
	// A replay that has the last batch as it was proves that the process is the same.
	s.connected()
	s.confirmed()
	if got := s.judge(5, 0); got != inOrder {
		t.Errorf("a confirmed process: verdict %d", got)
	}
}

func TestNumbersAreJudged(t *testing.T) {
	type step struct {
		connect bool
		seq     uint64
		want    verdict
	}
	for name, steps := range map[string][]step{
		"from the beginning":       {{true, 0, inOrder}, {false, 1, inOrder}, {false, 1, duplicate}, {false, 2, inOrder}},
		"joined late":              {{true, 7, gap}, {false, 8, inOrder}},
		"a gap":                    {{true, 0, inOrder}, {false, 3, gap}, {false, 4, inOrder}},
		"out of order":             {{true, 0, inOrder}, {false, 2, gap}, {false, 1, restarted}},
		"restarted unseen":         {{true, 0, inOrder}, {false, 1, inOrder}, {false, 0, restarted}, {false, 1, inOrder}},
		"reconnected, as expected": {{true, 0, inOrder}, {false, 1, inOrder}, {true, 2, restarted}, {false, 3, inOrder}},
		"reconnected, ahead":       {{true, 0, inOrder}, {false, 1, inOrder}, {true, 3, restarted}},
		"reconnected, from 0":      {{true, 0, inOrder}, {false, 1, inOrder}, {true, 0, restarted}},
		"reconnected, repeatedly":  {{true, 5, gap}, {true, 6, restarted}, {true, 6, restarted}},
	} {
		var s progress
		var got []verdict
		ok := true
		for _, st := range steps {
			if st.connect {
				s.connected()
			}
			v := s.judge(st.seq, 0)
			got = append(got, v)
			ok = ok && v == st.want
			if v != duplicate {
				s.applied(st.seq, 0)
			}
		}
		if !ok {
			t.Errorf("%s: %v", name, got)
		}
	}
	// What a replay has brought is not news, and not a restart.
	var s progress
	s.connected()
	s.judge(0, 0)
	s.applied(9, 0)
	if got := []verdict{s.judge(5, 0), s.judge(9, 0), s.judge(10, 0)}; !slices.Equal(got, []verdict{duplicate, duplicate, inOrder}) {
		t.Errorf("after a replay: %v", got)
	}
}

// Every way from one state to another.
func TestWhatIsKnownOfARank(t *testing.T) {
	states := map[string]progress{
		"blank":           {},
		"partial":         {extent: partial, next: 5},
		"whole":           {extent: whole, next: 5},
		"doubted partial": {extent: partial, next: 5, doubted: true},
		"doubted whole":   {extent: whole, next: 5, doubted: true},
	}
	type to map[string]string // from which state to which
	for event, c := range map[string]struct {
		do func(*progress)
		to to
	}{
		"batch 0": {func(p *progress) { p.applied(0, 0) }, to{"blank": "whole"}},
		"batch 5": {func(p *progress) { p.applied(5, 0) }, to{
			"blank": "partial", "partial": "partial", "whole": "whole", "doubted partial": "partial", "doubted whole": "whole",
		}},
		"nothing published": {(*progress).nothingPublished, to{"blank": "whole"}},
		"unreadable":        {func(p *progress) { p.unreadable(4, 0) }, to{"partial": "partial", "whole": "partial", "doubted whole": "partial"}},
		"connected": {(*progress).connected, to{
			"blank": "blank", "partial": "doubted partial", "whole": "doubted whole",
		}},
		"confirmed": {(*progress).confirmed, to{"doubted partial": "partial", "doubted whole": "whole"}},
		"forget": {(*progress).forget, to{
			"blank": "blank", "partial": "blank", "whole": "blank", "doubted partial": "blank", "doubted whole": "blank",
		}},
	} {
		for from, want := range c.to {
			got := states[from]
			c.do(&got)
			if w := states[want]; got.extent != w.extent || got.doubted != w.doubted {
				t.Errorf("%s in state %s: %+v, want %s", event, from, got, want)
			}
		}
	}
}

// What was heard and applied on a connection is what a replay on it has to bring, until numbers begin again.
func TestAReplayThatBringsLessThanWasHeardIsKnown(t *testing.T) {
	var p progress
	p.connected()
	for seq := range uint64(5) {
		p.judge(seq, 0)
		p.applied(seq, 0)
		p.took()
	}
	p.applied(5, 0) // replayed
	p.forget()
	for seq := range uint64(5) {
		if !p.lacks() {
			t.Errorf("it lacks none with %d of 5", seq)
		}
		p.applied(seq, 0)
	}
	if p.lacks() {
		t.Error("it lacks one with all")
	}
	for name, begin := range map[string]func(){"another connection": p.connected, "numbers that begin again": func() { p.judge(0, 0) }} {
		begin()
		if p.forget(); p.lacks() {
			t.Errorf("it lacks one after %s", name)
		}
		p.judge(1, 0)
		p.applied(1, 0)
		p.took()
	}
	p.connected()
	p.judge(0, 0)
	p.applied(0, 0)
	p.judge(5, 0) // a gap
	for seq := range uint64(4) {
		if p.applied(1+seq, 0); p.lacks() != (seq < 3) {
			t.Errorf("with %d of what is missing: %t", 1+seq, p.lacks())
		}
	}
}

// A process that has published nothing yet has no number that the one before it had.
func TestNothingIsLeftOfAProcessBefore(t *testing.T) {
	var p progress
	p.applied(5000, 0)
	p.forget()
	p.nothingPublished()
	p.applied(0, 7)
	if got := p.judge(0, 8); got != restarted {
		t.Errorf("another batch 0: verdict %d", got)
	}
}

// A replay may be ahead of what is heard. If it has other batches there, it is another process's.
func TestABatchIsComparedWithTheReplayedOneOfItsNumber(t *testing.T) {
	replayed := func(first uint64) *progress {
		var p progress
		p.connected()
		for seq := first; seq < first+2*sumsKept; seq++ {
			p.applied(seq, seq)
		}
		return &p
	}
	for name, c := range map[string]struct {
		first, seq, sum uint64
		want            verdict
	}{
		"the same":                          {0, sumsKept, sumsKept, duplicate},
		"another":                           {0, sumsKept, 7, restarted},
		"another, the last":                 {0, 2*sumsKept - 1, 7, restarted},
		"one that is too old to be of it":   {0, 5, 5, restarted},
		"one from before the replay begins": {1000, 5, 7, duplicate},
		"the next":                          {0, 2 * sumsKept, 7, inOrder},
	} {
		p := replayed(c.first)
		if got := p.judge(c.seq, c.sum); got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
		if got := p.judge(c.seq, c.sum); got != duplicate {
			t.Errorf("%s again: verdict %d", name, got)
		}
		if got := p.judge(c.seq, c.sum+1); got != restarted {
			t.Errorf("%s again, otherwise: verdict %d", name, got)
		}
	}
}
