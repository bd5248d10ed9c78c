package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/backoff"
	"github.com/kvconn/kvconn/internal/zmtp"
)

// item is what a reader hands over: a batch, or else that the connection came (connected), brought what is
// no batch (connected, with an error) or was lost (an error).
type item struct {
	frame     *frame
	connected bool
	err       error
}

type frame struct {
	seq     uint64
	message zmtp.Message
}

func (f *frame) payload() []byte { return f.message.Frame(2) }

// reader receives a rank's messages and queues them. If the queue is full it drops batches: an engine blocks,
// or drops batches itself, when nobody reads.
type reader struct {
	opts     *RankOptions
	endpoint string
	queue    chan item
	listener net.Listener // with Bind, else nil

	free      sync.Pool
	queued    atomic.Int64 // bytes
	lost      atomic.Bool  // batches were dropped since the last look
	overflows atomic.Uint64
	badFrames atomic.Uint64
	connects  atomic.Uint64
	connected atomic.Bool
}

// run connects, again and again, until ctx ends.
func (r *reader) run(ctx context.Context) {
	connect := func() (*zmtp.Conn, error) { return zmtp.DialSub(ctx, r.endpoint, r.opts.Topic) }
	if r.listener != nil {
		connect = func() (*zmtp.Conn, error) { return zmtp.AcceptSub(ctx, r.listener, r.opts.Topic) }
	}
	retry := backoff.Backoff{Least: r.opts.ReconnectMin, Most: r.opts.ReconnectMax}
	for ctx.Err() == nil {
		c, err := connect()
		if err == nil {
			began := time.Now()
			r.connects.Add(1)
			r.connected.Store(true)
			if r.hand(ctx, item{connected: true}) {
				err = r.receive(ctx, c)
			}
			r.connected.Store(false)
			r.lost.Store(false) // the next connection begins with a replay, or with nothing
			_ = c.Close()
			retry.Ended(began)
		}
		if ctx.Err() != nil || !r.hand(ctx, item{err: err}) || !retry.Wait(ctx) {
			return
		}
	}
}

// hand queues an item that must not be lost.
func (r *reader) hand(ctx context.Context, i item) bool {
	select {
	case r.queue <- i:
		return true
	case <-ctx.Done():
		return false
	}
}

var errFrames = errors.New("messages that are not [topic, number, payload]")

// receive queues what the connection brings, until it ends.
func (r *reader) receive(ctx context.Context, c *zmtp.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for {
		f, _ := r.free.Get().(*frame)
		if f == nil {
			f = new(frame)
		}
		if err := c.Recv(&f.message); err != nil {
			return err
		}
		if f.message.Len() != 3 || len(f.message.Frame(1)) != 8 {
			r.badFrames.Add(1)
			if !r.hand(ctx, item{connected: true, err: errFrames}) {
				return errFrames
			}
			continue
		}
		f.seq = binary.BigEndian.Uint64(f.message.Frame(1))
		r.push(f)
	}
}

func (r *reader) push(f *frame) {
	n := int64(f.message.Cap())
	if r.queued.Add(n) <= r.opts.QueueBytes {
		select {
		case r.queue <- item{frame: f}:
			return
		default:
		}
	}
	r.queued.Add(-n)
	r.overflows.Add(1)
	r.lost.Store(true)
	r.reuse(f)
}

// keepFrameBytes is up to what size a message's memory is used again.
const keepFrameBytes = 1 << 20

func (r *reader) done(f *frame) {
	r.queued.Add(-int64(f.message.Cap()))
	r.reuse(f)
}

func (r *reader) reuse(f *frame) {
	if f.message.Cap() <= keepFrameBytes {
		r.free.Put(f)
	}
}
