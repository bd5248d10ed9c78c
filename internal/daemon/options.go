// Package daemon is kvconnd serving: one store, a leader for every engine and a worker
// for every rank that connects, and the HTTP interface for people and monitoring.
package daemon

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/router/publish"
	"github.com/kvconn/kvconn/store/disk"
)

// Version is the name and version that clients and people are told.
const Version = "kvconnd/0.1.0"

// Options configure [Run].
type Options struct {
	// Dir is the store directory, Socket the Unix socket for engines, HTTP the address
	// of the HTTP interface, empty for none.
	Dir, Socket, HTTP string
	// MaxBytes is the store's hard cap in physical bytes; 0 lets the store choose.
	MaxBytes int64
	// MinFreeBytes is what the store leaves free of its segments' file system, or MinFreePercent of
	// it. With neither the store chooses, unless NoMinFree says that it leaves nothing.
	MinFreeBytes   int64
	MinFreePercent float64
	NoMinFree      bool
	// ForgetSegments has the store start empty where all its segments are gone.
	ForgetSegments bool
	// Writers and ReadInFlightBytes bound what is asked of the disk at one time, EventBytes
	// the memory of events that routers have yet to read; 0 is the store's default, and a
	// thirty-second of the memory at most for the last.
	Writers           int
	ReadInFlightBytes int64
	EventBytes        int64
	// LoadTimeout is the time in which every load ends.
	LoadTimeout time.Duration
	// HostBytes is the memory of the host tier: staging of all loads and saves, and cached
	// records. Default: an eighth of the memory of the machine, or of the process's cgroup
	// where that has less, 512 MiB at least (or half of it) and 16 GiB at most, so that
	// nobody who starts a daemon to try it is short of memory afterwards.
	HostBytes int64
	// LoadStagingBytes and SaveStagingBytes bound what one rank's loads and saves take of
	// it; 0 is the default of host.AccountOptions.
	LoadStagingBytes, SaveStagingBytes int64
	// ScrubBytesPerS is the rate at which records are verified in the background; 0 for
	// none.
	ScrubBytesPerS int64
	// MinOfferTokens is the smallest offer made.
	MinOfferTokens int
	// PromptsOnly, PrefillTokensPerS and StageTimeout are those of leader.Options, for every
	// engine; 0 is the default there.
	PromptsOnly       bool
	PrefillTokensPerS float64
	StageTimeout      time.Duration
	// StopTimeout bounds a stop in order. Default 25 s: less than the 30 s after which
	// Kubernetes kills a container, and enough to write gigabytes of accepted saves.
	StopTimeout time.Duration
	// Pprof is the loopback address of Go's profiles, empty for none.
	Pprof string
	// Publish, if set, has KV events published of what the store holds, for other routers.
	// Its loggers are set to this one.
	Publish *publish.Options
	// Driver copies to and from engine memory. Default: the host driver.
	Driver gpu.Driver
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
	if o.LoadTimeout == 0 {
		o.LoadTimeout = 10 * time.Second
	}
	if o.HostBytes == 0 {
		o.HostBytes = hostmemory.DefaultBytes()
	}
	if o.EventBytes == 0 {
		o.EventBytes = min(maxEventBytes, max(hostmemory.AvailableBytes()/eventShare, minEventBytes))
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 25 * time.Second
	}
	if o.Driver == nil {
		o.Driver = new(gpu.HostDriver)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("daemon: store directory is empty")
	case o.Socket == "":
		return errors.New("daemon: socket is empty")
	case o.MinFreeBytes < 0 || o.MinFreePercent < 0 || o.MinFreePercent >= 100:
		return errors.New("daemon: what is left free must be positive, and less than all")
	case o.LoadTimeout <= 0:
		return errors.New("daemon: load timeout must be positive")
	case o.StopTimeout <= 0:
		return errors.New("daemon: stop timeout must be positive")
	}
	return nil
}
