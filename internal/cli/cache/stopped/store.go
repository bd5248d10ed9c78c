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
// [disk.ErrInUse] if a daemon, or another command, has the store, and if the keys are not those of its records.
func OpenToRead(ctx context.Context, o Options) (*disk.Store, error) {
	if err := isStore(o.Dir); err != nil {
		return nil, err
	}
	so := o.store()
	so.MaxBytes, so.MinFreeBytes = noCap, -1
	return o.open(ctx, so)
}

// OpenToWrite opens a store as its daemon does, or makes one in an empty directory. It fails with [disk.ErrInUse] if a daemon, or another
// command, has the store, and if the keys are not those of its records.
func OpenToWrite(ctx context.Context, o Options) (*disk.Store, error) {
	entries, err := os.ReadDir(o.Dir)
	if errors.Is(err, fs.ErrNotExist) { // it may be mistyped
		return nil, fmt.Errorf("%w: make the directory for a new store, or name that of a store", err)
	}
	if err == nil && len(entries) > 0 {
		err = errors.Join(daemon.RefuseForeign(o.Dir), isOwn(o.Dir))
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
	return o.open(ctx, so)
}

func (o *Options) store() disk.Options {
	return disk.Options{Dir: o.Dir, Ring: o.Ring, Progress: o.Progress, Logger: o.Logger}
}

// open opens a store, and waits until all its records are found. It fails if the keys are not those of the daemon: the command would
// miss what the store has, or write what the daemon does not use.
func (o *Options) open(ctx context.Context, so disk.Options) (*disk.Store, error) {
	so.KeepHidden = true // a forgotten --key-file must not cost records
	s, err := disk.Open(ctx, so)
	if err != nil {
		return nil, err
	}
	if err = o.awaitRebuild(ctx, s); err == nil {
		err = o.checkKeys(s)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// checkKeys reports that records which must be used cannot be.
func (o *Options) checkKeys(s *disk.Store) error {
	st := s.Stats()
	none, without := st.Records == 0, "" // a daemon, too, goes on without a part of its records
	if st.Rebuild.Running {
		none, without = true, "; or start the daemon once, which goes on without them after its journal was lost"
	}
	switch {
	case st.Keyless > 0 && o.Ring == nil:
		return fmt.Errorf("%d records of %s are sealed: give the daemon's --key-file", st.Keyless, o.Dir)
	case st.Keyless > 0 && none:
		return fmt.Errorf("%d records of %s are sealed with keys that the key file lacks: give the daemon's --key-file%s", st.Keyless, o.Dir, without)
	case st.Unsealed > 0 && none:
		return fmt.Errorf("%d records of %s are not sealed, and none is used with a key file: leave --key-file out if the daemon has none%s", st.Unsealed, o.Dir, without)
	}
	return nil
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

// isOwn refuses another user's store: its daemon could not use the files that this process would make there. The directory itself may be
// somebody else's, as in Kubernetes.
func isOwn(dir string) error {
	info, err := os.Stat(filepath.Join(dir, "FORMAT"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("the store in %s belongs to user %d: run the command as that user, who can use what it writes there", dir, st.Uid)
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
			return nil
		}
		if st.Keyless+st.Unsealed > 0 { // it has no end then
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
