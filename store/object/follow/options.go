package follow

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/seal"
)

const (
	// Polling pauses double up to activePause while an engine matches, else up to PollMax.
	activePause = 5 * time.Second
	activeFor   = time.Minute
	// The head is read this often, in case others follow another log, and more often while there is none.
	headEvery   = 10 * time.Minute
	noHeadEvery = time.Minute
	// openPause is the pause while the breaker is open: what is asked then costs nothing, or is the trial.
	openPause  = time.Second
	errorPause = 30 * time.Second
	// Without conditional writes a file is read again after settle, to see who wrote last.
	settle = 3 * time.Second
	// partsAtOnce bounds the memory of parts: each may have 64 MiB, and several times that decoded.
	partsAtOnce = 4
	// logAtOnce is how many objects of the log are asked for at once by who is far from its end.
	logAtOnce = 16
	// An object of the log that is damaged is read this often before it is passed over.
	tries = 3
)

// ErrKey says that the bucket is sealed, and there is no key to read it with. The error names the key.
var ErrKey = errors.New("the bucket is sealed, and there is no key file")

// Catalog takes in what is followed.
type Catalog interface {
	Apply(l *format.List) (added, removed int)
	// Forget empties it: what was followed is not what is there now.
	Forget()
}

// Outbox hears which bucket it is, and which lists the log has.
type Outbox interface {
	Begin(b format.BucketID)
	Logged(s []format.Source)
	// Unlogged takes Logged back.
	Unlogged(s []format.Source)
}

// Options say what a [Follower] works with. Client and Catalog are needed.
type Options struct {
	Client  bucket.Client
	Catalog Catalog
	// Outbox is this node's. Default: none, for one that only reads.
	Outbox Outbox
	// Ring opens lists. With a ring, only sealed ones are accepted.
	Ring *seal.Ring
	// ReadOnly leaves a bucket without the file format as it is, and waits for others to begin it.
	ReadOnly bool
	// PollMax is the longest pause between two polls. Default 30 s.
	PollMax time.Duration
	// Now is the bucket's clock. Default: that of this machine.
	Now func() time.Time
	// Emptied is called when the bucket turns out to be another one than before: what is on disk may be
	// offered to it again. It must not wait. Default: nothing.
	Emptied func()
	// Logger receives what an operator should know. Default [slog.Default].
	Logger *slog.Logger
}

// Validate reports what makes no sense.
func (o *Options) Validate() error {
	switch {
	case o.Client == nil || o.Catalog == nil:
		return errors.New("follow options: Client and Catalog are needed")
	case o.PollMax < 0:
		return fmt.Errorf("follow options: PollMax %v is negative", o.PollMax)
	}
	return nil
}

func (o *Options) complete() {
	if o.Outbox == nil {
		o.Outbox = nobody{}
	}
	if o.PollMax == 0 {
		o.PollMax = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Emptied == nil {
		o.Emptied = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// nobody is the outbox of a node that only reads.
type nobody struct{}

func (nobody) Begin(format.BucketID)    {}
func (nobody) Logged([]format.Source)   {}
func (nobody) Unlogged([]format.Source) {}
