package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// forgetful is a leader that is replaced, from the second question on as often as renew says.
type forgetful struct {
	*fakeConnector
	session uint64
	renew   int
	asked   []string
}

func (f *forgetful) Session() uint64 { return f.session }

func (f *forgetful) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	f.asked = append(f.asked, fmt.Sprintf("%d+%d", m.From, len(m.Tokens)))
	if len(f.asked) > 1 && f.renew > 0 {
		f.renew--
		f.session++
		if m.From > 0 {
			return connector.Offer{}
		}
	}
	return f.fakeConnector.Match(ctx, m)
}

// As vLLM's connector does, a repeated match sends what is new, and all to a new leader.
func TestRepeatedMatchSendsWhatTheLeaderDoesNotKnow(t *testing.T) {
	for renew, want := range []string{"[0+40 40+0]", "[0+40 40+0 0+40]"} {
		e := newEngine(t)
		f := &forgetful{fakeConnector: newFake(t, e, newStore()), renew: renew}
		e.Attach(f)
		r := &request{Request: Request{ID: "r", Prompt: prompt(1, 40)}, tokens: prompt(1, 40)}
		for range 2 {
			e.offer(t.Context(), r, 0)
		}
		if got := fmt.Sprint(f.asked); got != want || r.told != 40 || r.session != f.session {
			t.Errorf("asked %s, want %s; told %d in session %d of %d", got, want, r.told, r.session, f.session)
		}
	}
}
