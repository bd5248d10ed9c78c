package outbox

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	// Lists are put at most every leastPause + eachWriter × writers: a thousand nodes together put a
	// hundred lists a second, which one steward can merge.
	leastPause = 2 * time.Second
	eachWriter = 8 * time.Millisecond
	// A list with nothing but uses can wait: the age at which objects go is counted in days.
	usesPause = 10 * time.Minute
	// A list that was put should be in the log within seconds. If not, somebody has to look at the lease,
	// and later whether the list is still there.
	stuckAfter = 10 * time.Second
	againAfter = time.Minute
	// After a failure the next attempt comes within these.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// memory of writers, and of lists that are in the log.
	remember = 10 * time.Minute
	// maxKeptBytes bounds entries and lists in memory. Past it new ones are dropped: the objects are found
	// by their footers, or go as orphans.
	maxKeptBytes = 64 << 20
)

// ErrUnknownBucket says that nobody has said yet which bucket it is: see [Outbox.Begin].
var ErrUnknownBucket = errors.New("outbox: the bucket's identity is not known yet")

// Options say what an [Outbox] works with.
type Options struct {
	Client bucket.Client
	// Ring seals lists. Default: they are not sealed.
	Ring *seal.Ring
	// Uses returns and forgets which objects this node used. Default: none.
	Uses func() []format.Use
	// Stuck is called when a list has waited for the log for 10 s, and every 10 s from then on: perhaps
	// nobody merges. It must not wait. Default: nothing.
	Stuck func()
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

func (o *Options) complete() {
	if o.Uses == nil {
		o.Uses = func() []format.Use { return nil }
	}
	if o.Stuck == nil {
		o.Stuck = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}
