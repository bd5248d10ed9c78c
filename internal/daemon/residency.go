package daemon

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/residency"
)

const (
	// residencyStreams bounds the streams at one time: routers, and not many.
	residencyStreams = 64
	// residencySnapshots bounds the streams that are reading a snapshot: that costs processor time,
	// and keeps what the journal has deleted meanwhile.
	residencySnapshots = 16
	// residencySnapshotTime is the time that every reader has for a snapshot. A large one takes longer:
	// residencyLeast is how many of its records a reader must take in a second.
	residencySnapshotTime = 2 * time.Minute
	residencyLeast        = 20_000
	// residencyWriteTimeout is how long a reader may read nothing.
	residencyWriteTimeout = 30 * time.Second
	// residencyRetry is when a reader that was refused may try again, in seconds.
	residencyRetry = "5"
)

// residencySource is the store as the streams need it.
type residencySource interface {
	residency.Source
	Usage() store.Usage
}

// newResidencyHandler serves residency streams of s, GET /v1/residency, until ctx, the daemon's life, ends.
// A stream resumes at the position in its request's parameters, if the store still has what followed. Streams
// and snapshots are shared out among clients, so that none takes all.
func newResidencyHandler(ctx context.Context, s residencySource) http.Handler {
	return &residencyHandler{
		ctx: ctx, source: s,
		streams: httplimit.NewShares(residencyStreams), snapshots: httplimit.NewShares(residencySnapshots),
	}
}

type residencyHandler struct {
	ctx                context.Context // ends all streams
	source             residencySource
	streams, snapshots *httplimit.Shares
}

func refuseResidency(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", residencyRetry)
	http.Error(w, why, http.StatusServiceUnavailable)
}

func (h *residencyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client := httplimit.ClientOf(r)
	if !h.streams.Take(client) {
		refuseResidency(w, "too many residency streams")
		return
	}
	defer h.streams.Give(client)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	u := h.resume(r)
	resumed := u != nil
	giveSnapshot := func() {}
	if !resumed {
		if !h.snapshots.Take(client) {
			refuseResidency(w, "too many snapshots of residency are being read")
			return
		}
		giveSnapshot = sync.OnceFunc(func() { h.snapshots.Give(client) })
		defer giveSnapshot()
		var err error
		if u, err = h.source.Subscribe(ctx); err != nil {
			refuseResidency(w, err.Error())
			return
		}
	}
	defer func() { _ = u.Close() }()
	w.Header().Set("Content-Type", "application/vnd.kvconn.residency")
	w.Header().Set("Cache-Control", "no-store")
	s := &residency.Stream{
		Source: h.source, To: residency.NewWriter(patientWriter{w, http.NewResponseController(w)}),
		SnapshotTimeout: residencySnapshotTime + time.Duration(h.source.Usage().Records/residencyLeast)*time.Second,
		SnapshotDone:    giveSnapshot,
	}
	if err := s.Run(ctx, u, resumed); r.Context().Err() == nil {
		s.End(err, h.ctx.Err() != nil)
	}
}

// resume goes on where the reader says it stopped; nil if that is not possible.
func (h *residencyHandler) resume(r *http.Request) store.Subscription {
	from, ok := residency.ParsePosition(r.URL.Query())
	if !ok {
		return nil
	}
	u, err := h.source.SubscribeAfter(from.Epoch, from.Seq)
	if err != nil { // not kept any more
		return nil
	}
	return u
}

// patientWriter sends each write at once, within the time that a reader has.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (w patientWriter) Write(b []byte) (int, error) {
	err := w.control.SetWriteDeadline(time.Now().Add(residencyWriteTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := w.w.Write(b)
	if err == nil {
		err = w.control.Flush()
	}
	return n, err
}
