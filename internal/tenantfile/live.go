package tenantfile

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/quota"
)

// Live is a file that can be read again. A nil one is of no file: it has no tenants. Its methods may be called from any goroutine.
type Live struct {
	path    string
	load    func(path string, mayBeEmpty bool) (*File, error)
	current atomic.Pointer[File]
}

// Open reads a file that may be read again later.
func Open(path string) (*Live, error) {
	f, err := Load(path)
	if err != nil {
		return nil, err
	}
	l := &Live{path: path, load: load}
	l.current.Store(f)
	return l, nil
}

// File is what the file said when it was read last without an error. It is not to be changed, and nil if there is no file.
func (l *Live) File() *File {
	if l == nil {
		return nil
	}
	return l.current.Load()
}

// Run reads the file again whenever again says so, until ctx ends, and gives the quotas to apply. While the file has an error, what was read
// before stays.
func (l *Live) Run(ctx context.Context, again <-chan struct{}, apply func(quota.Limits), log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		if l == nil {
			log.Info("a hangup (SIGHUP) changes nothing: no tenants_file is set, and other settings are read at a start", "remedy", "none is needed; SIGTERM stops the daemon")
			continue
		}
		f, err := l.again(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Warn("the tenants file could not be read again: names and quotas are as they were", "file", l.path, "err", err,
				"remedy", "mend the file, then send SIGHUP again; a start with this file would fail")
			continue
		}
		before := l.current.Swap(f)
		apply(f.Quotas())
		added, removed, changed := compare(before, f)
		log.Info("the tenants file was read again", "file", l.path, "tenants", len(f.Tenants), "added", added, "removed", removed,
			"changed", changed, "default_max_bytes", f.DefaultMaxBytes)
	}
}

// again reads the file, or gives up when ctx ends: a file system that does not answer must not hold up a stop.
func (l *Live) again(ctx context.Context) (*File, error) {
	var f *File
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		f, err = l.load(l.path, false)
	}()
	select {
	case <-read:
		return f, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// compare counts the tenants that only one of two files has, and those with another name or quota.
func compare(before, after *File) (added, removed, changed int) {
	old := make(map[tenants.ID]Tenant, len(before.Tenants))
	for _, t := range before.Tenants {
		old[t.ID] = t
	}
	for _, t := range after.Tenants {
		was, ok := old[t.ID]
		switch {
		case !ok:
			added++
		case was != t:
			changed++
		}
		delete(old, t.ID)
	}
	return added, len(old), changed
}
