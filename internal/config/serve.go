// Package config is the one schema of kvconnd's settings: the same names, defaults and
// checks for flags, environment and YAML file.
package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
)

// Serve are the settings of `kvconnd serve`. The tags name the flag, the environment
// variable and the help text; the YAML key is the flag's name with underscores.
type Serve struct {
	Dir    string `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"Store directory, required. It is made if it is missing."`
	Socket string `name:"socket" env:"KVCONN_SOCKET" placeholder:"PATH" help:"Unix socket for engines. Default: /run/kvconn/kvconnd.sock, or in the user's own runtime directory."`
	Access
	HTTP               string        `name:"http" env:"KVCONN_HTTP" default:"127.0.0.1:9477" placeholder:"ADDR" help:"Address of /healthz, /metrics and /v1/status; port 0 picks a free one; 'off' for none (default 127.0.0.1:9477)."`
	HTTPRemote         bool          `name:"http-remote" env:"KVCONN_HTTP_REMOTE" help:"Allow an HTTP address that is not loopback. Set a token, too: there is no other authentication."`
	HTTPToken          string        `name:"http-token" env:"KVCONN_HTTP_TOKEN" secret:"true" placeholder:"TOKEN" help:"Bearer token that HTTP requests have to send, except for health and the description. Set it in the environment or the file: a command line can be seen by others."`
	MaxBytes           Cap           `name:"max-bytes" env:"KVCONN_MAX_BYTES" placeholder:"SIZE|N%" help:"Hard cap of disk use, everything included, such as 500GB, or 80% of its file system. Default: 80% of what is free or the store's own, at each start."`
	MinFree            Space         `name:"min-free" env:"KVCONN_MIN_FREE" placeholder:"SIZE|N%" help:"What the store leaves free of its file system, such as 20GB or 5%; 0 for nothing. Default: the larger of 5% and 10GiB, a quarter of it at most."`
	ForgetLostSegments bool          `name:"forget-lost-segments" env:"KVCONN_FORGET_LOST_SEGMENTS" help:"Start empty if all segments of a store are gone. Without it such a store is not opened: its disk may not be mounted yet."`
	LoadTimeout        time.Duration `name:"load-timeout" env:"KVCONN_LOAD_TIMEOUT" default:"10s" help:"Time within which every load ends; blocks that are missing then are recomputed."`
	HostBytes          Bytes         `name:"host-bytes" env:"KVCONN_HOST_BYTES" default:"0B" placeholder:"SIZE" help:"Memory of the host tier: buffers of all loads and saves, and cached records. Default: an eighth of the memory of machine or cgroup, 512MiB to 16GiB, half of it at most."`
	LoadStagingBytes   Bytes         `name:"load-staging-bytes" env:"KVCONN_LOAD_STAGING_BYTES" default:"64MiB" placeholder:"SIZE" help:"How much of the host tier one rank's loads may take (default 64MiB)."`
	SaveStagingBytes   Bytes         `name:"save-staging-bytes" env:"KVCONN_SAVE_STAGING_BYTES" default:"256MiB" placeholder:"SIZE" help:"How much of the host tier one rank's saves may take; saves that do not fit are dropped (default 256MiB)."`
	KeyFile            string        `name:"key-file" env:"KVCONN_KEY_FILE" placeholder:"FILE" help:"Keys that records are sealed with, made by 'kvconnd key new'. With it only sealed records are used. Default: none."`
	TenantsFile        string        `name:"tenants-file" env:"KVCONN_TENANTS_FILE" placeholder:"FILE" help:"YAML file that names tenants by their cache_salt, and says how much of the disk each may take. SIGHUP has it read again. Default: none."`
	ScrubBytesPerS     Bytes         `name:"scrub-bytes-per-s" env:"KVCONN_SCRUB_BYTES_PER_S" default:"0B" placeholder:"SIZE" help:"Rate at which records are verified in the background. Default: none."`
	PinMaxPercent      float64       `name:"pin-max-percent" env:"KVCONN_PIN_MAX_PERCENT" default:"50" placeholder:"N" help:"How much of the cap 'kvconnd cache pin' may keep from being evicted, 0 to 90 (default 50)."`
	Writers            int           `name:"writers" env:"KVCONN_WRITERS" default:"0" placeholder:"N" help:"Records that are written to the disk at one time, 1 to 256; a quarter of them while it is read. Default: what suits most disks."`
	ReadInFlightBytes  Bytes         `name:"read-in-flight-bytes" env:"KVCONN_READ_IN_FLIGHT_BYTES" default:"0B" placeholder:"SIZE" help:"Bytes that are requested from the disk at one time, at least 1MiB. Default: what the first start measures."`
	EventBytes         Bytes         `name:"event-bytes" env:"KVCONN_EVENT_BYTES" default:"0B" placeholder:"SIZE" help:"Most memory for events that routers have not read yet, used only while one is behind. Default: a 32nd of the memory, 16MiB to 256MiB."`
	MinOfferTokens     int           `name:"min-offer-tokens" env:"KVCONN_MIN_OFFER_TOKENS" default:"0" placeholder:"N" help:"Smallest hit that is offered to an engine (default 0: any)."`
	PromptsOnly        bool          `name:"prompts-only" env:"KVCONN_PROMPTS_ONLY" help:"Save prompts only, not what decoding adds to them."`
	NoPrefetch         bool          `name:"no-prefetch" env:"KVCONN_NO_PREFETCH" help:"Don't read offered blocks into host memory before the engine has room for them."`
	PrefillTokensPerS  float64       `name:"prefill-tokens-per-s" env:"KVCONN_PREFILL_TOKENS_PER_S" default:"0" placeholder:"N" help:"Prefill speed of the engines, which loads must beat. Default: learnt from each engine's steps."`
	StageTimeout       time.Duration `name:"stage-timeout" env:"KVCONN_STAGE_TIMEOUT" default:"50ms" help:"How long a match waits for reads if the engine cannot take a failed load (TensorRT-LLM)."`
	StopTimeout        time.Duration `name:"stop-timeout" env:"KVCONN_STOP_TIMEOUT" default:"25s" help:"Time within which an orderly stop ends: accepted saves are written and the snapshot is made. After it the process ends at once."`
	CUDALibrary        string        `name:"cuda-library" env:"KVCONN_CUDA_LIBRARY" placeholder:"FILE" help:"The CUDA driver's library, for engines that share memory of a GPU. It is loaded when the first one does. Default: libcuda.so.1, as the system's loader finds it."`
	Object
	Record
	OTLP
	Router          string `name:"router" env:"KVCONN_ROUTER" placeholder:"FILE" help:"Settings of a router to serve beside the daemon, the file of 'kvconnd router --config'. Default: none."`
	PublishEvents   string `name:"publish-events" env:"KVCONN_PUBLISH_EVENTS" placeholder:"ENDPOINT" help:"ZeroMQ endpoint that tells other routers what the store holds, as KV events in vLLM's form, such as tcp://127.0.0.1:5557 or ipc:///run/kvconn/events. Default: none."`
	PublishReplay   string `name:"publish-replay" env:"KVCONN_PUBLISH_REPLAY" placeholder:"ENDPOINT" help:"Endpoint where they request events that they missed. Default: none."`
	PublishTopic    string `name:"publish-topic" env:"KVCONN_PUBLISH_TOPIC" placeholder:"TEXT" help:"Topic of the events. Default: none, as vLLM's."`
	PublishHashForm string `name:"publish-hash-form" env:"KVCONN_PUBLISH_HASH_FORM" default:"uint64" enum:"uint64,int64,bytes" help:"Form of block hashes in the events: uint64 (as vLLM and TensorRT-LLM), int64 (SGLang) or bytes."`
	PublishModel    string `name:"publish-model" env:"KVCONN_PUBLISH_MODEL" placeholder:"NAME" help:"The one model that is published. Default: all."`
	PublishRemote   bool   `name:"publish-remote" env:"KVCONN_PUBLISH_REMOTE" help:"Allow event endpoints that are not loopback. There is no authentication."`
	Pprof           string `name:"pprof" env:"KVCONN_PPROF" placeholder:"ADDR" help:"Loopback address of Go's profiles (/debug/pprof/), such as 127.0.0.1:6060; port 0 picks a free one. Default: none."`
	LogLevel        string `name:"log-level" env:"KVCONN_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Lowest level of log lines: debug, info, warn or error."`
	LogFormat       string `name:"log-format" env:"KVCONN_LOG_FORMAT" default:"text" enum:"text,json" help:"Form of log lines: text or json."`
}

// DefaultHTTP is the address of the daemon's HTTP interface if no other is set.
const DefaultHTTP = "127.0.0.1:9477"

const (
	// minMaxBytes is the smallest cap that the store accepts.
	minMaxBytes = 8 << 20
	// maxWriters and minReadInFlight are what the store accepts: one request to the disk at
	// least.
	maxWriters      = 256
	maxPinPercent   = 90
	minReadInFlight = 1 << 20
	// minEventBytes is a little more than the store always keeps.
	minEventBytes = 4 << 20
	// minHostBytes has room for the largest block that an engine may have.
	minHostBytes = 64 << 20
	// minLoadTimeout is less than any disk needs under load.
	minLoadTimeout = 10 * time.Millisecond
	// minStopTimeout is less than a snapshot of a small index takes.
	minStopTimeout = 100 * time.Millisecond
)

// EnsureDefaults fills in the defaults that depend on the machine.
func (s *Serve) EnsureDefaults() {
	if s.Socket == "" {
		s.Socket = DefaultSocket()
	}
}

// Validate reports the first setting that cannot work, by its name.
func (s *Serve) Validate() error {
	switch {
	case s.Dir == "":
		return errors.New("dir is not set: give the store directory with --dir, KVCONN_DIR or dir in the configuration file")
	case s.MaxBytes.Set && s.MaxBytes.Percent == 0 && s.MaxBytes.Bytes < minMaxBytes:
		return fmt.Errorf("max_bytes is %s: at least %s, or 0", s.MaxBytes, Bytes(minMaxBytes))
	case s.HostBytes != 0 && s.HostBytes < minHostBytes:
		return fmt.Errorf("host_bytes is %s: at least %s, or 0", s.HostBytes, Bytes(minHostBytes))
	case s.Writers < 0 || s.Writers > maxWriters:
		return fmt.Errorf("writers is %d: 1 to %d, or 0", s.Writers, maxWriters)
	case s.ReadInFlightBytes != 0 && s.ReadInFlightBytes < minReadInFlight:
		return fmt.Errorf("read_in_flight_bytes is %s: at least %s, or 0", s.ReadInFlightBytes, Bytes(minReadInFlight))
	case s.EventBytes != 0 && s.EventBytes < minEventBytes:
		return fmt.Errorf("event_bytes is %s: at least %s, or 0", s.EventBytes, Bytes(minEventBytes))
	case s.LoadTimeout < minLoadTimeout:
		return fmt.Errorf("load_timeout is %s: at least %s", s.LoadTimeout, minLoadTimeout)
	case s.LoadStagingBytes < 1 || s.SaveStagingBytes < 1:
		return errors.New("staging sizes must be positive")
	case !(s.PinMaxPercent >= 0 && s.PinMaxPercent <= maxPinPercent):
		return fmt.Errorf("pin_max_percent is %v: 0 to %d", s.PinMaxPercent, maxPinPercent)
	case s.ScrubBytesPerS < 0:
		return errors.New("scrub_bytes_per_s is negative")
	case s.MinOfferTokens < 0:
		return errors.New("min_offer_tokens is negative")
	case s.PrefillTokensPerS < 0 || math.IsNaN(s.PrefillTokensPerS) || math.IsInf(s.PrefillTokensPerS, 0):
		return fmt.Errorf("prefill_tokens_per_s is %v: a positive number, or 0", s.PrefillTokensPerS)
	case s.StageTimeout <= 0:
		return fmt.Errorf("stage_timeout is %s: must be positive", s.StageTimeout)
	case s.StopTimeout < minStopTimeout:
		return fmt.Errorf("stop_timeout is %s: at least %s", s.StopTimeout, minStopTimeout)
	}
	return errors.Join(s.validateHTTP(), s.validateObject(), s.validatePublish(), s.validatePprof(), s.validateRecord(), s.OTLP.validate())
}

func (s *Serve) validateHTTP() error {
	err := checkToken("http_token", s.HTTPToken)
	if s.HTTP == "off" {
		return err
	}
	return errors.Join(err, checkAddress("http", s.HTTP, "HOST:PORT or off", s.HTTPRemote, "set http_remote to allow that, and http_token; there is no other authentication"))
}

// checkAddress wants an address that can be reached from this machine only, unless remote allows others.
func checkAddress(key, addr, want string, remote bool, remedy string) error {
	loopback, err := isLoopback(addr)
	switch {
	case err != nil:
		return fmt.Errorf("%s %q is no address: %w; want %s", key, addr, err, want)
	case !loopback && !remote:
		return fmt.Errorf("%s %q is not loopback: %s", key, addr, remedy)
	}
	return nil
}

// validatePprof allows only loopback: a profile shows the command line, and taking one slows the
// daemon down.
func (s *Serve) validatePprof() error {
	if s.Pprof == "" {
		return nil
	}
	return checkAddress("pprof", s.Pprof, "HOST:PORT", false, "profiles are for this machine alone, give an address such as 127.0.0.1:6060")
}

// isLoopback reports whether an address, HOST:PORT, can be reached from this machine only.
func isLoopback(addr string) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, err
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > math.MaxUint16) {
		return false, fmt.Errorf("there is no port %d", n)
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback()), nil
}

// maxTopicBytes is the longest topic that a subscription can name.
const maxTopicBytes = 255

// validatePublish checks the settings of published events.
func (s *Serve) validatePublish() error {
	if s.PublishEvents == "" {
		if s.PublishReplay != "" || s.PublishTopic != "" || s.PublishModel != "" || s.PublishRemote {
			return errors.New("publish_events is not set: the other publish_ settings mean nothing without it")
		}
		return nil
	}
	if len(s.PublishTopic) > maxTopicBytes {
		return fmt.Errorf("publish_topic has %d bytes: at most %d", len(s.PublishTopic), maxTopicBytes)
	}
	if s.PublishReplay == s.PublishEvents && !strings.HasSuffix(s.PublishEvents, ":0") {
		return errors.New("publish_replay is the endpoint of publish_events: it needs one of its own")
	}
	return errors.Join(s.validateEndpoint("publish_events", s.PublishEvents), s.validateEndpoint("publish_replay", s.PublishReplay))
}

// validateEndpoint checks a ZeroMQ endpoint: tcp://HOST:PORT, with * for all addresses, or
// ipc://PATH. No endpoint is also right.
func (s *Serve) validateEndpoint(key, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	scheme, rest, _ := strings.Cut(endpoint, "://")
	if scheme == "ipc" && rest != "" {
		return nil
	}
	_, port, err := net.SplitHostPort(rest)
	if n, portErr := strconv.Atoi(port); scheme != "tcp" || err != nil || portErr != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s %q is no endpoint: want tcp://HOST:PORT or ipc://PATH", key, endpoint)
	}
	if loopback, err := isLoopback(rest); err != nil || !loopback && !s.PublishRemote {
		return fmt.Errorf("%s %q is not loopback: set publish_remote to allow that; there is no authentication", key, endpoint)
	}
	return nil
}
