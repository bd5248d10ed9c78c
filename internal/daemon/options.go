// Package daemon is what `kvconnd serve` runs: one store, a leader for every engine and a worker
// for every rank that connects, and the HTTP interface for people and monitoring.
package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/residency/publish"
	"github.com/kvconn/kvconn/store/seal"
)

// Options configure [Run].
type Options struct {
	// Dir is the store directory, Socket the Unix socket for engines, HTTP the address
	// of the HTTP interface, empty for none.
	Dir, Socket, HTTP string
	// HTTPToken, if set, has to come as bearer token with every HTTP request but those for health and the description.
	HTTPToken string
	// Access says who may connect to the socket besides root and the daemon's own user.
	Access server.Access
	// MaxBytes is the store's hard cap in physical bytes, or MaxPercent of its segments' file system. With neither the
	// store chooses.
	MaxBytes   int64
	MaxPercent float64
	// The store leaves MinFreeBytes, or MinFreePercent, of its segments' file system free. With
	// neither the store chooses; with NoMinFree it leaves nothing.
	MinFreeBytes   int64
	MinFreePercent float64
	NoMinFree      bool
	// ForgetSegments makes the store start empty if all its segments are gone.
	ForgetSegments bool
	// Writers and ReadInFlightBytes bound what is requested from the disk at one time; 0 is the
	// store's default. EventBytes bounds the memory of events that routers have not yet read;
	// default: a thirty-second of the memory, 16 MiB to 256 MiB.
	Writers           int
	ReadInFlightBytes int64
	EventBytes        int64
	// LoadTimeout is the time within which every load ends. Default 10 s.
	LoadTimeout time.Duration
	// HostBytes is the memory of the host tier: buffers of all loads and saves, and cached
	// records. Default: an eighth of the memory of the machine, or of the process's cgroup if
	// that has less; at least 512 MiB (or half of it) and at most 16 GiB, so that a daemon that
	// somebody only tries does not take too much.
	HostBytes int64
	// LoadStagingBytes and SaveStagingBytes bound how much of it one rank's loads and saves
	// take; 0 is the default of host.AccountOptions.
	LoadStagingBytes, SaveStagingBytes int64
	// Ring, if not nil, seals what is stored: then only sealed records are used.
	Ring *seal.Ring
	// PinMaxPercent is which part of the cap may be pinned: see [disk.Options].
	PinMaxPercent float64
	// ScrubBytesPerS is the rate at which records are verified in the background; 0 for
	// none.
	ScrubBytesPerS int64
	// MinOfferTokens is the smallest offer made.
	MinOfferTokens int
	// PromptsOnly, PrefillTokensPerS and StageTimeout are those of leader.Options, for every
	// engine; 0 is the default there.
	PromptsOnly bool
	// NoPrefetch keeps offered blocks from being read into the host tier before their load.
	NoPrefetch        bool
	PrefillTokensPerS float64
	StageTimeout      time.Duration
	// StopTimeout bounds an orderly stop. Default 25 s: less than the 30 s after which
	// Kubernetes kills a container, and enough to write gigabytes of accepted saves.
	StopTimeout time.Duration
	// Pprof is the loopback address of Go's profiles, empty for none.
	Pprof string
	// Publish, if set, has KV events published of what the store holds, for other routers.
	// Its loggers are set to this one.
	Publish *publish.Options
	// Object, if set, is the bucket that nodes share the cache through. Its loggers are set to this one.
	Object *ObjectOptions
	// Record, if set, is the trace that engines' requests are recorded in. Its logger is set to this one.
	Record *tracelog.Options
	// Spans, if set, says where traces of requests are sent. Its logger, version and instance are set here.
	Spans *spans.Options
	// Driver copies to and from engine memory. Default: the host driver.
	Driver gpu.Driver
	// Tenants, if not nil, names tenants and says what their quotas are. Whenever Reload has something, it is read again.
	Tenants *tenantfile.Live
	Reload  <-chan struct{}
	// Notify tells the service manager how the daemon does; nil if there is none.
	Notify *sdnotify.Notifier
	Logger *slog.Logger
	// Ready, if set, is called once engines can connect.
	Ready func(Info)
	// Store, if set, changes the options that the store is opened with: a seam for tests,
	// which put a disk that fails (package storetest) or short leases under a whole daemon.
	Store func(disk.Options) disk.Options
}

// Bounds of the default memory of events.
const (
	maxEventBytes = 256 << 20
	minEventBytes = 16 << 20
	eventShare    = 32
)

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.LoadTimeout = cmp.Or(o.LoadTimeout, 10*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, 25*time.Second)
	o.HostBytes = cmp.Or(o.HostBytes, hostmemory.DefaultBytes())
	o.EventBytes = cmp.Or(o.EventBytes, min(maxEventBytes, max(hostmemory.AvailableBytes()/eventShare, minEventBytes)))
	o.Driver = cmp.Or[gpu.Driver](o.Driver, new(gpu.HostDriver))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("daemon: store directory is empty")
	case o.Socket == "":
		return errors.New("daemon: socket is empty")
	case o.MaxPercent < 0 || o.MaxPercent >= 100:
		return errors.New("daemon: the cap must be positive, and less than all of the file system")
	case o.MinFreeBytes < 0 || o.MinFreePercent < 0 || o.MinFreePercent >= 100:
		return errors.New("daemon: what is left free must be positive, and less than all")
	case o.LoadTimeout <= 0:
		return errors.New("daemon: load timeout must be positive")
	case o.StopTimeout <= 0:
		return errors.New("daemon: stop timeout must be positive")
	}
	if err := o.Access.Validate(); err != nil {
		return fmt.Errorf("daemon: %w", err)
	}
	return nil
}
