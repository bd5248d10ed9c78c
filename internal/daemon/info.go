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
	"time"
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
