package daemon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/descriptors"
	"github.com/kvconn/kvconn/internal/daemon/explain"
	"github.com/kvconn/kvconn/internal/daemon/residencystream"
	"github.com/kvconn/kvconn/internal/daemon/warm"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/pins"
	"github.com/kvconn/kvconn/store/residency/publish"
)

// open opens the store, and makes what serves it.
func (d *daemon) open(ctx context.Context) error {
	tending, stop := context.WithCancel(ctx)
	var tended sync.WaitGroup
	tended.Go(func() { d.tendOpening(tending) })
	s, err := d.openStore(ctx)
	stop()
	tended.Wait()
	if err != nil {
		return err
	}
	d.store = s
	if d.chain, err = d.openChain(); err != nil {
		return errors.Join(err, s.Close())
	}
	d.backend = newBackend(d.opts, d.chain, d.arena)
	d.backend.times, d.backend.record, d.backend.tracer = d.times, d.record, d.spans
	d.server = server.New(server.Options{
		Epoch: d.epoch, Version: version.Server(), LoadTimeout: d.opts.LoadTimeout, UID: os.Getuid(), Access: d.opts.Access,
		Logger: d.opts.Logger,
	}, d.backend)
	var bucket residencystream.BucketSource
	if d.object != nil {
		bucket = d.object
	}
	d.residency = residencystream.New(ctx, s, bucket, d.backend.adapters)
	d.admin = admin.New(admin.Options{
		Disk: s, Host: d.arena, Pins: pinned{s.Pins(), s}, Store: s, Sync: s.Sync, Sealed: d.opts.Ring != nil, Bucket: d.object != nil,
		Tenants: d.opts.Tenants, Logger: d.opts.Logger,
	})
	d.explain = explain.Handler(&explain.Source{Levels: d.backend.levels, Namespaces: s.Namespaces, PayloadBytes: d.chain.PayloadBytes, Newest: d.backend.newest})
	d.warm = warm.Handler(&warm.Warmer{Cache: d.backend.cache, Disk: s, Logger: d.opts.Logger}, s.Namespaces, func(model string) *connector.Manifest { return d.backend.newest(model).Manifest })
	if err := d.openPublisher(ctx); err != nil {
		return err
	}
	st := s.Stats()
	d.opening.Observe(time.Now(), &st)
	d.opened.Store(true)
	return nil
}

// pinned are a store's pins.
type pinned struct {
	*pins.Pins
	store *disk.Store
}

// Kept is how much is pinned.
func (p pinned) Kept() (records, bytes int64) {
	st := p.store.Stats()
	return st.Pinned, st.PinnedBytes
}

// openPublisher opens the endpoints of published events, if there are to be any.
func (d *daemon) openPublisher(ctx context.Context) (err error) {
	if d.opts.Publish == nil {
		return nil
	}
	o := *d.opts.Publish
	o.Logger = d.opts.Logger
	if d.publisher, err = publish.New(ctx, o, d.store); err != nil {
		return err
	}
	s := d.publisher.Stats()
	d.info.Events, d.info.EventsReplay = s.Endpoint, s.ReplayEndpoint
	return nil
}

func (d *daemon) openStore(ctx context.Context) (*disk.Store, error) {
	o := d.opts
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store directory %s: %w", o.Dir, err)
	}
	if err := RefuseForeign(o.Dir); err != nil {
		return nil, err
	}
	s, err := disk.Open(ctx, d.storeOptions())
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", o.Dir, err)
	}
	d.logOpened(s.Stats())
	return s, nil
}

func (d *daemon) storeOptions() disk.Options {
	o := d.opts
	so := disk.Options{
		Dir: o.Dir, MaxBytes: o.MaxBytes, MaxPercent: o.MaxPercent, MinFreeBytes: o.MinFreeBytes, MinFreePercent: o.MinFreePercent, Logger: o.Logger,
		LeaseMax: max(time.Minute, 2*o.LoadTimeout),
		// Saves are bounded by the ranks' share of the host tier, which refuses first: if the
		// store refused one shard, the block's other shards would be wasted space.
		WriteInFlightBytes: math.MaxInt64 / 2,
		Writers:            o.Writers,
		ReadInFlightBytes:  o.ReadInFlightBytes,
		ReadTimeout:        o.LoadTimeout,
		Calibrate:          true,
		ScrubBytesPerS:     o.ScrubBytesPerS,
		Ring:               o.Ring,
		EventBytes:         o.EventBytes,
		PinMaxPercent:      o.PinMaxPercent,
		Progress:           d.opening.Progress,
		ForgetSegments:     o.ForgetSegments,
		Quotas:             o.Tenants.File().Quotas(),
	}
	if o.NoMinFree {
		so.MinFreeBytes = -1
	}
	if o.Store != nil {
		so = o.Store(so)
	}
	return so
}

// logOpened logs what was opened, and what a person should know about it.
func (d *daemon) logOpened(st disk.Stats) {
	log := d.opts.Logger
	log.Info("store opened", "dir", st.Dir, "records", st.Records, "physical_bytes", st.PhysicalBytes,
		"max_bytes", st.MaxBytes, "cap", st.CapSource, "min_free_bytes", st.MinFreeBytes, "free_bytes", st.FreeBytes,
		"recovered", st.Recovered, "took", st.OpenDuration)
	if st.Evicted > 0 {
		log.Warn("records were evicted while the store was opened: they did not fit its cap", "evicted", st.Evicted,
			"records", st.Records, "max_bytes", st.MaxBytes, "cap", st.CapSource,
			"remedy", "none is needed if max_bytes was lowered; else raise it, or free space on the disk")
	}
	descriptors.Check(log, descriptors.Limit(), segmentsOf(st.MaxBytes))
}

// segmentsOf estimates into how many segments a cap is divided at most.
func segmentsOf(maxBytes int64) int64 {
	const least, bytes, most = 32, 256 << 20, 4096 // as in store/disk/options.go and store/disk/segment/cap.go
	return min(max(maxBytes/bytes, least), most)
}

func diskIsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// closeStore closes the store. On a full disk nothing that a barrier made durable is lost: the
// next start reads the journal.
func (d *daemon) closeStore() error {
	d.closeUploads()
	d.opts.Logger.Info("closing the store")
	err := d.closeTiers()
	switch {
	case err == nil:
		return nil
	case diskIsFull(err):
		d.opts.Logger.Warn("the disk is full: the newest saves are not durable, and the next start takes longer", "err", err,
			"remedy", "free space on the file system of the store, or lower max_bytes")
		return nil
	}
	return fmt.Errorf("close the store: %w", err)
}

// ErrForeign says that a directory holds files of others and no store.
var ErrForeign = errors.New("directory is not empty and holds no store")

// RefuseForeign refuses a directory that somebody else uses. A store that has lost some of
// its files is still one.
func RefuseForeign(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("look into the store directory: %w", err)
	}
	defer func() { _ = f.Close() }()
	const enough = 256 // a store has its own names among few others
	names, err := f.Readdirnames(enough)
	if len(names) == 0 {
		return nil // an error to read it is the store's to report
	}
	ours := func(name string) bool {
		// Names that a new store, or the mount point of one, has.
		return slices.Contains([]string{"FORMAT", "LOCK", "segments", "index", "namespaces", infoFile}, name)
	}
	others := slices.DeleteFunc(names, func(name string) bool { return name == "lost+found" })
	if err != nil || len(others) == 0 || slices.ContainsFunc(others, ours) {
		return nil
	}
	return fmt.Errorf("%s: %w, but %q: give --dir an empty directory, or one that is not there yet", dir, ErrForeign, others[0])
}
