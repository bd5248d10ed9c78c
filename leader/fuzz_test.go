package leader

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// FuzzCalls makes calls of arbitrary numbers in arbitrary order: nothing may panic, no
// offer may reach the last token, and at the end nothing may be pinned.
func FuzzCalls(f *testing.F) {
	f.Add([]byte{0, 1, 20, 0, 1, 1, 0, 16, 2, 1, 0, 20, 3, 1, 0, 0, 4, 1, 0, 0})
	f.Add([]byte{0, 1, 60, 8, 2, 1, 0, 40, 0, 2, 60, 0, 1, 2, 8, 30, 5, 2, 0, 0, 6, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		x := newFixture(t, hybrid)
		x.run("seed", tokens(0, 50), 0, connector.Scope{})
		for ; len(b) >= 4; b = b[4:] {
			x.call(b[0], fmt.Sprint(b[1]%4), int(int8(b[2])), int(int8(b[3])), uint32(binary.LittleEndian.Uint16(b[2:])))
		}
		x.step(connector.StepRequest{Finished: []string{"0", "1", "2", "3"}})
		if x.x.held() != 0 || x.requests.size != 0 {
			t.Errorf("%d leases and requests of size %d are left", x.x.held(), x.requests.size)
		}
	})
}

func (f *fixture) call(op byte, id string, a, b int, slot uint32) {
	var s connector.StepRequest
	switch op % 7 {
	case 0:
		m := connector.MatchRequest{Request: id, From: b, Tokens: tokens(max(0, b), max(0, a)), Computed: b / 2}
		if op&8 != 0 {
			m.From = 0
		}
		if o, err := f.Match(f.Context(), &m); err == nil && o.Tokens > 0 && m.Computed+o.Tokens >= m.From+len(m.Tokens) {
			f.Errorf("offer of %d tokens after %d reaches the end of %d", o.Tokens, m.Computed, m.From+len(m.Tokens))
		}
		return
	case 1:
		s.Allocs = []connector.Alloc{{Request: id, Computed: a, External: b, Blocks: f.tables(int(slot), 30)}}
		if op&8 != 0 {
			s.Allocs[0].GroupComputed = []int{a, b}
		}
	case 2:
		s.Scheduled = []connector.Scheduled{{Request: id, Reset: op&8 != 0, NewBlocks: f.tables(int(slot), 20), Computed: a, Count: b, From: a, NewTokens: tokens(3, 5)}}
	case 3:
		_ = f.Loaded(f.Context(), &connector.LoadedReport{Done: []string{id}, InvalidBlocks: []uint32{slot}})
		return
	case 4:
		s.Finished = []string{id}
	case 5:
		s.Preempted = []string{id}
	case 6:
		_ = f.Reset(f.Context())
		return
	}
	if r, err := f.Step(f.Context(), &s); err == nil && len(r.Metadata) > 0 {
		if _, err := connector.ParsePlan(r.Metadata); err != nil {
			f.Errorf("plan that no worker can read: %v", err)
		}
	}
}
