// Package residencystream serves what the tiers hold, as streams that routers follow: GET /v1/residency.
package residencystream

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
	// maxStreams bounds the streams at one time: routers, and not many.
	maxStreams = 64
	// maxSnapshots bounds the streams that are reading a snapshot: that costs processor time,
	// and keeps what the journal has deleted meanwhile.
	maxSnapshots = 16
	// snapshotTime is the time that every reader has for a snapshot. A large one takes longer:
	// leastPerS is how many of its records a reader must take in a second.
	snapshotTime = 2 * time.Minute
	leastPerS    = 20_000
	// writeTimeout is how long a reader may read nothing.
	writeTimeout = 30 * time.Second
	// retryAfter is when a reader that was refused may try again, in seconds.
	retryAfter = "5"
	// lookInterval is how often a stream of a bucket looks whether its records are still offered.
	lookInterval = time.Second
)

// Source is a tier as the streams need it.
type Source interface {
	residency.Source
	Usage() store.Usage
}

// BucketSource is a tier that other nodes fill too, and that may offer nothing for a while.
type BucketSource interface {
	Source
	Offers() bool
	Manifest(context.Context, connector.NamespaceDigest) ([]byte, error)
}

// errNoOffers is why there is no stream of the bucket.
var errNoOffers = errors.New("the bucket's records are not offered: it does not work, or has not been heard of lately")

// New serves residency streams, GET /v1/residency, until ctx, the daemon's life, ends: those of the
// disk, which tell of adapters as well, and with tier=object those of the bucket, which may be nil. A stream resumes at the position in its request's
// parameters, if the tier still has what followed. Streams and snapshots are shared out among clients, so that none
// takes all.
func New(ctx context.Context, disk Source, bucket BucketSource, adapters residency.AdapterSource) http.Handler {
	return &handler{
		ctx: ctx, disk: disk, bucket: bucket, adapters: adapters,
		streams: httplimit.NewShares(maxStreams), snapshots: httplimit.NewShares(maxSnapshots),
	}
}

type handler struct {
	ctx                context.Context // ends all streams
	disk               Source
	bucket             BucketSource // nil without one
	adapters           residency.AdapterSource
	streams, snapshots *httplimit.Shares
}

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", retryAfter)
	http.Error(w, why, http.StatusServiceUnavailable)
}

// ServeHTTP serves the stream of the tier that the request names. While the bucket offers nothing there is no stream
// of it, and one that is open ends: its reader keeps what it knows for a while, and resumes.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		refuse(w, errNoOffers.Error())
	default:
		defer watchOffers(ctx, h.bucket, cancel)()
		h.serve(ctx, w, r, h.bucket, tier, h.bucket.Manifest)
	}
}

// Refusal is the answer to a request that can never be served.
type Refusal struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func refusalOf(code, message string) (r Refusal) {
	r.Error.Code, r.Error.Message = code, message
	return r
}

// watchOffers cancels ctx once a bucket offers nothing. The watch ends with the function that it returns.
func watchOffers(ctx context.Context, b BucketSource, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		look := time.NewTicker(lookInterval)
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
func (h *handler) serve(ctx context.Context, w http.ResponseWriter, r *http.Request, of Source, tier string, manifest readManifest) {
	client := httplimit.ClientOf(r)
	if !h.streams.Take(client) {
		refuse(w, "too many residency streams")
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
			refuse(w, "too many snapshots of residency are being read")
			return
		}
		giveSnapshot = sync.OnceFunc(func() { h.snapshots.Give(client) })
		defer giveSnapshot()
		var err error
		if u, err = of.Subscribe(ctx); err != nil {
			refuse(w, err.Error())
			return
		}
	}
	defer func() { _ = u.Close() }()
	w.Header().Set("Content-Type", residency.ContentType(tier))
	s := &residency.Stream{
		Source: of, To: residency.NewWriter(patientWriter{w, http.NewResponseController(w)}), Manifest: manifest,
		SnapshotTimeout: snapshotTime + time.Duration(of.Usage().Records/leastPerS)*time.Second,
		SnapshotDone:    giveSnapshot,
	}
	if tier == residency.Disk {
		s.Adapters = h.adapters
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
func resume(of Source, r *http.Request) store.Subscription {
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
	err := w.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := w.w.Write(b)
	if err == nil {
		err = w.control.Flush()
	}
	return n, err
}
