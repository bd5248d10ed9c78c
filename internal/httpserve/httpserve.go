// Package httpserve has what the HTTP interfaces of daemon and router share.
package httpserve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Serve serves h on l until ctx ends. Then it calls draining, if that is not nil, and waits for the requests under
// way. Requests that have not ended within grace are cut off; cut reports whether there were any.
func Serve(ctx context.Context, h *http.Server, l net.Listener, grace time.Duration, draining func()) (cut bool, err error) {
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		if draining != nil {
			draining()
		}
		end, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		stopped <- h.Shutdown(end)
	})
	err = h.Serve(l)
	if !stop() {
		err = <-stopped // Serve returns as soon as the stop begins
	}
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, context.DeadlineExceeded):
		_ = h.Close() // the connections are cut either way
		return true, nil
	}
	return false, fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
}

// writeTimeout bounds the writing of an answer: a client that reads nothing holds nothing.
const writeTimeout = 30 * time.Second

// WriteJSON answers with v as JSON, which nobody may cache, in lines that are indented by indent; if that is empty,
// in one line.
func WriteJSON(w http.ResponseWriter, status int, v any, indent string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of tests has none
	enc := json.NewEncoder(w)
	enc.SetIndent("", indent)
	_ = enc.Encode(v) // the client has gone
}
