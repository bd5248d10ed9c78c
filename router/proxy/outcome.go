package proxy

import (
	"sync/atomic"

	"github.com/kvconn/kvconn/internal/spans"
)

// outcome is how a request ended: see [Stats].
type outcome int

const (
	endedOK outcome = iota
	endedClientError
	endedRefused
	endedFailed
	endedBroken
	endedLeft
	outcomes
)

// String is the outcome as the label of the metrics has it.
func (o outcome) String() string {
	return [outcomes]string{"ok", "client_error", "refused", "failed", "broken", "left"}[o]
}

// counts count how requests ended, and what was tried for them.
type counts struct {
	ended                      [outcomes]atomic.Uint64
	tries, untokenized, others atomic.Uint64
	inFlight                   atomic.Int64
}

// ended counts how a request ended and notes it in its span, which is nil if there is none. status is that of the answer, 0 if
// there is none, why what went wrong if the client is not to blame.
func (p *Proxy) ended(s *spans.Route, o outcome, status int, why string) {
	p.counts.ended[o].Add(1)
	s.Answered(o.String(), status, why)
}
