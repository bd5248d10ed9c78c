// Package config is the one schema of kvconnd's settings: the same names, defaults and
// checks for flags, environment and YAML file.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Serve are the settings of `kvconnd serve`. The tags name the flag, the environment
// variable and the help text; the YAML key is the flag's name with underscores.
type Serve struct {
	Dir              string        `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"Store directory. Made if it is not there."`
	Socket           string        `name:"socket" env:"KVCONN_SOCKET" placeholder:"PATH" help:"Unix socket for engines. Default: kvconnd.sock in the runtime directory (/run/kvconn for root)."`
	HTTP             string        `name:"http" env:"KVCONN_HTTP" default:"127.0.0.1:9477" placeholder:"ADDR" help:"Address of /healthz, /metrics and /v1/status; port 0 picks a free one; 'off' for none."`
	HTTPRemote       bool          `name:"http-remote" env:"KVCONN_HTTP_REMOTE" help:"Allow an HTTP address that is not loopback. There is no authentication."`
	MaxBytes         Bytes         `name:"max-bytes" env:"KVCONN_MAX_BYTES" default:"0B" placeholder:"SIZE" help:"Hard cap of disk use, everything included, such as 500GB. 0: 80% of what is free when the store is made."`
	LoadTimeout      time.Duration `name:"load-timeout" env:"KVCONN_LOAD_TIMEOUT" default:"10s" help:"Time in which every load ends; what is missing then is recomputed."`
	LoadStagingBytes Bytes         `name:"load-staging-bytes" env:"KVCONN_LOAD_STAGING_BYTES" default:"64MiB" placeholder:"SIZE" help:"Staging memory for loads, per rank."`
	SaveStagingBytes Bytes         `name:"save-staging-bytes" env:"KVCONN_SAVE_STAGING_BYTES" default:"256MiB" placeholder:"SIZE" help:"Staging memory for saves, per rank. What does not fit is dropped."`
	ScrubBytesPerS   Bytes         `name:"scrub-bytes-per-s" env:"KVCONN_SCRUB_BYTES_PER_S" default:"0B" placeholder:"SIZE" help:"Rate at which records are verified in the background; 0 for none."`
	MinOfferTokens   int           `name:"min-offer-tokens" env:"KVCONN_MIN_OFFER_TOKENS" default:"0" placeholder:"N" help:"Smallest hit that is offered to an engine."`
	LogLevel         string        `name:"log-level" env:"KVCONN_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Least level of log lines: debug, info, warn or error."`
	LogFormat        string        `name:"log-format" env:"KVCONN_LOG_FORMAT" default:"text" enum:"text,json" help:"Form of log lines: text or json."`
}

const (
	// minMaxBytes is the smallest cap that the store accepts.
	minMaxBytes = 8 << 20
	// minLoadTimeout is less than any disk needs under load.
	minLoadTimeout = 10 * time.Millisecond
)

// DefaultSocket is where the daemon listens and engines connect unless told otherwise:
// below $XDG_RUNTIME_DIR, or /run/kvconn where there is none.
func DefaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && os.Getuid() != 0 {
		return filepath.Join(dir, "kvconn", "kvconnd.sock")
	}
	return "/run/kvconn/kvconnd.sock"
}

// Validate reports the first setting that cannot work, by its name.
func (s *Serve) Validate() error {
	switch {
	case s.Dir == "":
		return errors.New("dir is not set: give the store directory with --dir, KVCONN_DIR or dir in the configuration file")
	case s.MaxBytes != 0 && s.MaxBytes < minMaxBytes:
		return fmt.Errorf("max_bytes is %s: at least %s, or 0", s.MaxBytes, Bytes(minMaxBytes))
	case s.LoadTimeout < minLoadTimeout:
		return fmt.Errorf("load_timeout is %s: at least %s", s.LoadTimeout, minLoadTimeout)
	case s.LoadStagingBytes < 1 || s.SaveStagingBytes < 1:
		return errors.New("staging sizes must be positive")
	case s.ScrubBytesPerS < 0:
		return errors.New("scrub_bytes_per_s is negative")
	case s.MinOfferTokens < 0:
		return errors.New("min_offer_tokens is negative")
	}
	return s.validateHTTP()
}

func (s *Serve) validateHTTP() error {
	if s.HTTP == "off" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.HTTP)
	if err != nil {
		return fmt.Errorf("http %q is no address: want HOST:PORT or off", s.HTTP)
	}
	ip := net.ParseIP(host)
	if loopback := host == "localhost" || (ip != nil && ip.IsLoopback()); !loopback && !s.HTTPRemote {
		return fmt.Errorf("http %q is not loopback: set http_remote to allow that; there is no authentication", s.HTTP)
	}
	return nil
}
