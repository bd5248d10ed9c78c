package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// fetchTimeout bounds the question to a daemon.
	fetchTimeout = 5 * time.Second
	// maxStatusBytes bounds the answer.
	maxStatusBytes = 16 << 20
)

// FetchStatus asks the daemon whose HTTP interface is at addr for its status.
func FetchStatus(ctx context.Context, addr string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/status", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no daemon answers at %s: is kvconnd serve running? (%w)", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status from %s: %s", addr, resp.Status)
	}
	s := new(Status)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusBytes)).Decode(s); err != nil {
		return nil, fmt.Errorf("status from %s: %w", addr, err)
	}
	return s, nil
}
