package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/web"
	"github.com/kvconn/kvconn/internal/httpserve"
)

// infoFile is the file in the store directory that says how to reach the daemon.
const infoFile = "daemon.json"

// Info says how to reach a running daemon. It is also what Dir/daemon.json holds.
type Info struct {
	PID    int    `json:"pid"`
	Epoch  string `json:"epoch"`
	Socket string `json:"socket"`
	HTTP   string `json:"http,omitempty"`
	Pprof  string `json:"pprof,omitempty"`
	// Events and EventsReplay are where KV events are published and past ones requested.
	Events       string `json:"events,omitempty"`
	EventsReplay string `json:"events_replay,omitempty"`
}

// absolute is the path as others can use it, who have working directories of their own.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// writeInfo replaces the file in one step, so that a reader sees all of it or none. The directory
// must be this daemon's.
func (d *daemon) writeInfo() error {
	d.infoMu.Lock()
	defer d.infoMu.Unlock()
	path := filepath.Join(d.opts.Dir, infoFile)
	b, err := json.Marshal(d.info)
	if err == nil {
		err = os.WriteFile(path+".new", append(b, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", infoFile, err)
	}
	d.infoWritten = true
	return nil
}

func (d *daemon) removeInfo() {
	d.infoMu.Lock()
	defer d.infoMu.Unlock()
	if now, err := ReadInfo(d.opts.Dir); d.infoWritten && err == nil && now.Epoch == d.info.Epoch {
		_ = os.Remove(filepath.Join(d.opts.Dir, infoFile))
	}
}

// ReadInfo says how to reach the daemon that serves the store in dir.
func ReadInfo(dir string) (Info, error) {
	var info Info
	b, err := os.ReadFile(filepath.Join(dir, infoFile))
	if errors.Is(err, os.ErrNotExist) {
		return info, fmt.Errorf("no daemon serves %s", dir)
	}
	if err == nil {
		err = json.Unmarshal(b, &info)
	}
	if err != nil {
		return info, fmt.Errorf("read %s: %w", infoFile, err)
	}
	return info, nil
}

const (
	// fetchTimeout bounds the question to a daemon.
	fetchTimeout = 5 * time.Second
	// maxStatusBytes bounds the answer.
	maxStatusBytes = 16 << 20
)

// ErrRouter means that a router answers where a daemon was expected.
var ErrRouter = errors.New("it is a router, not a daemon")

// ErrToken means that a daemon wants another token.
var ErrToken = errors.New("the daemon wants its token: set KVCONN_HTTP_TOKEN")

// FetchStatus is [FetchStatusAs] for a daemon without a token.
func FetchStatus(ctx context.Context, addr string) (*Status, error) {
	return FetchStatusAs(ctx, addr, "")
}

// FetchStatusAs asks the daemon whose HTTP interface is at addr, HOST:PORT or a URL, for its status, with its token.
func FetchStatusAs(ctx context.Context, addr, token string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	url := addr
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/v1/status", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	resp, err := httpserve.Client(token).Do(req)
	if err != nil {
		return nil, fmt.Errorf("no daemon answers at %s: is kvconnd serve running? (%w)", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode != http.StatusUnauthorized:
	case resp.Header.Get("WWW-Authenticate") == web.Challenge:
		return nil, fmt.Errorf("status from %s: %w", addr, ErrToken)
	default:
		return nil, fmt.Errorf("status from %s: %w", addr, ErrRouter)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status from %s: %s", addr, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusBytes))
	if err != nil {
		return nil, fmt.Errorf("status from %s: %w", addr, err)
	}
	s := new(Status)
	if err := json.Unmarshal(body, s); err != nil {
		if isRouter(body) {
			err = ErrRouter
		}
		return nil, fmt.Errorf("status from %s: %w", addr, err)
	}
	return s, nil
}

// isRouter recognizes a router's status: it has a policy.
func isRouter(status []byte) bool {
	var s struct{ Policy string }
	_ = json.Unmarshal(status, &s)
	return s.Policy != ""
}
