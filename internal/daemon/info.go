package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// removeInfo removes the file if it is this daemon's.
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
