// Package stopped opens a store that no daemon serves, for commands that take records out of it or put some in.
package stopped

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/quota"
	"github.com/kvconn/kvconn/store/seal"
)

// Options say how a store is opened.
type Options struct {
	Dir string
	// Ring, if not nil, opens and seals records.
	Ring *seal.Ring
	// MaxBytes, MinFree and Quotas are those of the store's daemon: they bound what is put in.
	MaxBytes config.Cap
	MinFree  config.Space
	Quotas   quota.Limits
	// Progress, if set, is called with how far the opening is; total is 0 where that is not known.
	Progress func(what string, done, total int64)
	Logger   *slog.Logger
}

// noCap is a cap for which nothing is evicted.
const noCap = math.MaxInt64 / 4

// OpenToRead opens a store that is there, and waits until all its records are found. Nothing is evicted, whatever the cap is. It fails with
// [disk.ErrInUse] if a daemon, or another command, has the store.
func OpenToRead(ctx context.Context, o Options) (*disk.Store, error) {
	if err := isStore(o.Dir); err != nil {
		return nil, err
	}
	so := o.store()
	so.MaxBytes, so.MinFreeBytes = noCap, -1
	s, err := open(ctx, so)
	if err != nil {
		return nil, err
	}
	if err := o.awaitRebuild(ctx, s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenToWrite opens a store as its daemon does, or makes one in an empty directory. It fails with [disk.ErrInUse] if a daemon, or another
// command, has the store.
func OpenToWrite(ctx context.Context, o Options) (*disk.Store, error) {
	entries, err := os.ReadDir(o.Dir)
	if errors.Is(err, fs.ErrNotExist) { // it may be mistyped
		return nil, fmt.Errorf("%w: make the directory for a new store, or name that of a store", err)
	}
	if err == nil && len(entries) > 0 {
		err = daemon.RefuseForeign(o.Dir)
	}
	if err == nil {
		err = isOwn(o.Dir)
	}
	if err != nil {
		return nil, err
	}
	so := o.store()
	so.MaxBytes, so.MaxPercent, so.Quotas = int64(o.MaxBytes.Bytes), o.MaxBytes.Percent, o.Quotas
	so.MinFreeBytes, so.MinFreePercent = int64(o.MinFree.Bytes), o.MinFree.Percent
	so.PinMaxPercent = disk.MaxPinPercent // nothing is pinned here, and what is must stay, whatever the daemon's bound
	if o.MinFree.Set && o.MinFree.Bytes == 0 && o.MinFree.Percent == 0 {
		so.MinFreeBytes = -1
	}
	return open(ctx, so)
}

func (o *Options) store() disk.Options {
	return disk.Options{Dir: o.Dir, Ring: o.Ring, Progress: o.Progress, Logger: o.Logger}
}

func open(ctx context.Context, so disk.Options) (*disk.Store, error) {
	s, err := disk.Open(ctx, so)
	if err != nil {
		return nil, err
	}
	if hidden := s.Stats().Hidden; hidden.Keyless > 0 && so.Ring == nil {
		return nil, errors.Join(fmt.Errorf("%d records of %s are sealed: give the daemon's --key-file", hidden.Keyless, so.Dir), s.Close())
	}
	return s, nil
}

// isStore reports why a directory holds no store: to open one would make it.
func isStore(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("look into %s: %w: only the user of the daemon can open its store", dir, err)
	} else if err != nil {
		if entries, dirErr := os.ReadDir(filepath.Join(dir, "segments")); dirErr != nil || len(entries) == 0 {
			return fmt.Errorf("%s holds no store: %w", dir, err)
		}
	}
	return isOwn(dir)
}

// isOwn refuses another user's directory: the daemon could not use the files that this process would make there.
func isOwn(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: run the command as that user, who can use what it writes there", dir, st.Uid)
	}
	return nil
}

// rebuildTick is how often a rebuild is looked at.
const rebuildTick = 100 * time.Millisecond

// awaitRebuild waits while the store reads headers after its journal was lost.
func (o *Options) awaitRebuild(ctx context.Context, s *disk.Store) error {
	for {
		st := s.Stats()
		if !st.Rebuild.Running {
			if st.AwaitedSegments > 0 {
				o.Logger.Warn("segments cannot be read: their records are left out", "segments", st.AwaitedSegments,
					"remedy", "look for I/O errors in the kernel's log; give the command again once the disk answers")
			}
			return nil
		}
		if o.Progress != nil {
			o.Progress("reading headers", st.Rebuild.SlotsDone, st.Rebuild.Slots)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(rebuildTick):
		}
	}
}
