package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Removal is the answer of DELETE /v1/namespaces/{digest}.
type Removal struct {
	Digest string `json:"digest"`
	// Result is what was removed from the disk: durably, if the request has not failed.
	purge.Result
	// HostRemoved records were in the host tier.
	HostRemoved int `json:"host_removed"`
	// Bucket says that the daemon has an object tier. That was not touched, and loads may bring its records back.
	Bucket bool `json:"bucket"`
}

const (
	// leaseWait is how long loads under way may hold up a removal, and with it the answer. They take seconds.
	leaseWait = 10 * time.Second
	// fillWait is how long reads into the host tier may. fillPause is the time between two looks.
	fillWait  = 2 * time.Second
	fillPause = 5 * time.Millisecond
)

// ServeRemoval removes what the disk and the host tier hold of one namespace.
func (s *Service) ServeRemoval(w http.ResponseWriter, r *http.Request) {
	digest, err := parseDigest(r.PathValue("digest"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	removal, err := s.remove(r.Context(), digest)
	switch {
	case err == nil:
		s.o.Logger.Info("records were removed on request", "namespace", removal.Digest, "removed", removal.Removed, "left", removal.Left,
			"host_removed", removal.HostRemoved)
		httpserve.WriteJSON(w, http.StatusOK, removal, "  ")
	case errors.Is(err, store.ErrInvalid):
		http.Error(w, fmt.Sprintf("no namespace %v", digest), http.StatusNotFound)
	default:
		s.o.Logger.Warn("records could not be removed on request", "namespace", removal.Digest, "err", err,
			"remedy", "ask for it again; if it goes on, look for I/O errors in the kernel's log")
		http.Error(w, fmt.Sprintf("%d records were removed, and may be back after a crash: %v", removal.Removed, err), http.StatusInternalServerError)
	}
}

func (s *Service) remove(ctx context.Context, ns connector.NamespaceDigest) (*Removal, error) {
	r := &Removal{Digest: ns.String(), Bucket: s.o.Bucket}
	var err error
	if r.Result, err = s.o.Disk.Purge(ctx, ns, leaseWait); err != nil {
		return r, err
	}
	// The host tier comes last: nothing is read into it any more from what has left the disk.
	for end := time.Now().Add(fillWait); ; {
		n, filling := s.o.Host.Forget(ns)
		r.HostRemoved += n
		if filling == 0 || ctx.Err() != nil || time.Now().After(end) {
			return r, nil
		}
		time.Sleep(fillPause)
	}
}

func parseDigest(text string) (digest connector.NamespaceDigest, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(digest) {
		return digest, errors.New("a namespace is named by its digest, 64 hexadecimal digits")
	}
	return connector.NamespaceDigest(b), nil
}
