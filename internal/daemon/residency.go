package daemon

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/internal/httpserve"
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
	// residencyLook is how often a stream of a bucket looks whether its records are still offered.
	residencyLook = time.Second
)

// residencySource is a tier as the streams need it.
type residencySource interface {
	residency.Source
	Usage() store.Usage
}

// bucketSource is a tier that other nodes fill too, and that may offer nothing for a while.
type bucketSource interface {
	residencySource
	Offers() bool
	Manifest(context.Context, connector.NamespaceDigest) ([]byte, error)
}

// errNoOffers is why there is no stream of the bucket.
var errNoOffers = errors.New("the bucket's records are not offered: it does not work, or has not been heard of lately")

// newResidencyHandler serves residency streams, GET /v1/residency, until ctx, the daemon's life, ends: those of the
// disk, and with tier=object those of the bucket, which may be nil. A stream resumes at the position in its request's
// parameters, if the tier still has what followed. Streams and snapshots are shared out among clients, so that none
// takes all.
func newResidencyHandler(ctx context.Context, disk residencySource, bucket bucketSource) http.Handler {
	return &residencyHandler{
		ctx: ctx, disk: disk, bucket: bucket,
		streams: httplimit.NewShares(residencyStreams), snapshots: httplimit.NewShares(residencySnapshots),
	}
}

type residencyHandler struct {
	ctx                context.Context // ends all streams
	disk               residencySource
	bucket             bucketSource // nil without one
	streams, snapshots *httplimit.Shares
}

func refuseResidency(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", residencyRetry)
	http.Error(w, why, http.StatusServiceUnavailable)
}

// ServeHTTP serves the stream of the tier that the request names. While the bucket offers nothing there is no stream
// of it, and one that is open ends: its reader keeps what it knows for a while, and resumes.
func (h *residencyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	tier, err := residency.ParseTier(r.URL.Query())
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case err != nil:
		httpserve.WriteJSON(w, http.StatusBadRequest, refusalOf("unknown_tier", err.Error()), "")
	case tier == residency.Disk:
		h.serve(ctx, w, r, h.disk, tier, nil)
	case h.bucket == nil:
		httpserve.WriteJSON(w, http.StatusNotFound, refusalOf("no_bucket", "this kvconnd has no object tier: its setting object names no bucket"), "")
	case !h.bucket.Offers():
		refuseResidency(w, errNoOffers.Error())
	default:
		defer watchOffers(ctx, h.bucket, cancel)()
		h.serve(ctx, w, r, h.bucket, tier, h.bucket.Manifest)
	}
}

// residencyRefusal is the answer to a request that can never be served.
type residencyRefusal struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func refusalOf(code, message string) (r residencyRefusal) {
	r.Error.Code, r.Error.Message = code, message
	return r
}

// watchOffers cancels ctx once a bucket offers nothing. The watch ends with the function that it returns.
func watchOffers(ctx context.Context, b bucketSource, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		look := time.NewTicker(residencyLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if !b.Offers() {
				cancel(errNoOffers)
				return
			}
		}
	})
	return func() {
		end()
		watching.Wait()
	}
}

// readManifest reads the manifest of a namespace that a tier does not list.
type readManifest func(context.Context, connector.NamespaceDigest) ([]byte, error)

// serve runs a stream of a tier for one reader, until ctx or the daemon's life ends.
func (h *residencyHandler) serve(ctx context.Context, w http.ResponseWriter, r *http.Request, of residencySource, tier string, manifest readManifest) {
	client := httplimit.ClientOf(r)
	if !h.streams.Take(client) {
		refuseResidency(w, "too many residency streams")
		return
	}
	defer h.streams.Give(client)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	u := resume(of, r)
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
		if u, err = of.Subscribe(ctx); err != nil {
			refuseResidency(w, err.Error())
			return
		}
	}
	defer func() { _ = u.Close() }()
	w.Header().Set("Content-Type", residency.ContentType(tier))
	s := &residency.Stream{
		Source: of, To: residency.NewWriter(patientWriter{w, http.NewResponseController(w)}), Manifest: manifest,
		SnapshotTimeout: residencySnapshotTime + time.Duration(of.Usage().Records/residencyLeast)*time.Second,
		SnapshotDone:    giveSnapshot,
	}
	err := s.Run(ctx, u, resumed)
	if cause := context.Cause(ctx); errors.Is(cause, errNoOffers) {
		err = cause
	}
	if r.Context().Err() == nil {
		s.End(err, h.ctx.Err() != nil)
	}
}

// resume goes on where the reader says it stopped; nil if that is not possible.
func resume(of residencySource, r *http.Request) store.Subscription {
	from, ok := residency.ParsePosition(r.URL.Query())
	if !ok {
		return nil
	}
	u, err := of.SubscribeAfter(from.Epoch, from.Seq)
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
