package registry

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/policy"
)

// Rank describes one data-parallel rank of an engine.
type Rank struct {
	// ID is the router's number of the rank, by which pins and answers name it.
	ID int32 `json:"id"`
	// Model is the model's name in requests, Adapters the names of LoRA adapters that it serves, too.
	Model    string   `json:"model"`
	Adapters []string `json:"adapters,omitempty"`
	// Endpoint is the engine's HTTP server, http://host:port.
	Endpoint string `json:"endpoint"`
	// Engine is the kind of the engine. It has to be given for [SGLang], whose stores have keys of another scheme.
	Engine Engine `json:"engine,omitempty"`
	// DPMode, DPRank and DPStartRank say how the rank is addressed there; DPRank is the global index.
	// Default external, 0 and 0.
	DPMode      DPMode `json:"dp_mode,omitempty"`
	DPRank      int    `json:"dp_rank,omitempty"`
	DPStartRank int    `json:"dp_start_rank,omitempty"`
	// Events are the engine's KV cache events. Without them a prompt that was routed to the rank counts as
	// cached there for a time.
	Events *Events `json:"events,omitempty"`
	// Node names the machine whose kvconnd the rank loads from, and NodeURL is that kvconnd's HTTP
	// interface. Ranks of one node share them; one of them has to give the URL.
	Node    string `json:"node,omitempty"`
	NodeURL string `json:"node_url,omitempty"`
	// Bucket names the bucket that the rank's kvconnd loads from. BucketURL is the HTTP interface of any
	// kvconnd that uses it. Ranks of one bucket share them; one of them has to give the URL.
	Bucket    string `json:"bucket,omitempty"`
	BucketURL string `json:"bucket_url,omitempty"`
	// CacheModel is the model's name in the store's namespaces where it differs from Model: what the
	// engine was given. Namespace narrows it down to one, by its digest in hexadecimal.
	CacheModel string `json:"cache_model,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	// MaxActive and MaxTokens bound the requests and their tokens on the rank; 0 is unbounded.
	MaxActive int   `json:"max_active,omitempty"`
	MaxTokens int64 `json:"max_tokens,omitempty"`
	// BlockSize is the engine's number of tokens in a block. 0, the default, has the router learn it.
	BlockSize int `json:"block_size,omitempty"`
	// HashDomain is a name for all ranks whose engines give equal blocks equal hashes; it saves memory.
	// Default: the model. Engines whose hashes differ are noticed.
	HashDomain string `json:"hash_domain,omitempty"`
	// Speeds are known beforehand. A speed that is 0 is learnt.
	Speeds policy.Speeds `json:"speeds,omitzero"`
	// Draining ranks get no new requests.
	Draining bool `json:"draining,omitempty"`
}

// Events say where an engine publishes its KV cache events. Both endpoints are those of rank 0, as the
// engine was given them: DPRank is added to their ports.
type Events struct {
	// Endpoint is tcp://host:port or ipc://path.
	Endpoint string `json:"endpoint"`
	// ReplayEndpoint is asked for events that were missed; empty if there is none.
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	// Topic is what to subscribe to; empty is everything.
	Topic string `json:"topic,omitempty"`
	// Bind waits for the engine to connect to Endpoint, for engines whose endpoint names the router.
	Bind bool `json:"bind,omitempty"`
}

const (
	// maxName bounds names, maxAdapters how many adapters a rank has.
	maxName     = 256
	maxURL      = 2048
	maxAdapters = 1024
)

// EnsureDefaults fills in what is not set.
func (r *Rank) EnsureDefaults() {
	r.DPMode = cmp.Or(r.DPMode, External)
	r.HashDomain = cmp.Or(r.HashDomain, r.Model)
	r.CacheModel = cmp.Or(r.CacheModel, r.Model)
	r.Endpoint = strings.TrimRight(r.Endpoint, "/")
	r.NodeURL = strings.TrimRight(r.NodeURL, "/")
	r.BucketURL = strings.TrimRight(r.BucketURL, "/")
}

// Validate reports the first thing that cannot work.
func (r *Rank) Validate() error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("rank %d: %w", r.ID, err)
	}
	return nil
}

func (r *Rank) validate() error {
	digest, err := hex.DecodeString(r.Namespace)
	switch {
	case r.ID < 0:
		return errors.New("id is negative")
	case r.Model == "":
		return errors.New("model is empty")
	case len(r.Adapters) > maxAdapters:
		return fmt.Errorf("%d adapters, at most %d", len(r.Adapters), maxAdapters)
	case slices.Contains(r.Adapters, "") || slices.Contains(r.Adapters, r.Model):
		return errors.New("an adapter's name is empty or the model's")
	case r.BlockSize < 0 || r.BlockSize > connector.MaxBlockSize:
		return fmt.Errorf("block_size %d: 1 to %d, or 0 to have it learnt", r.BlockSize, connector.MaxBlockSize)
	case r.Engine != "" && r.Engine != VLLM && r.Engine != SGLang && r.Engine != TensorRTLLM:
		return fmt.Errorf("engine %.32q: %s, %s or %s", r.Engine, VLLM, SGLang, TensorRTLLM)
	case r.MaxActive < 0 || r.MaxTokens < 0:
		return errors.New("max_active or max_tokens is negative")
	case r.Namespace != "" && (err != nil || len(digest) != len(connector.NamespaceDigest{})):
		return fmt.Errorf("namespace %.80q: want its digest, 64 hexadecimal digits, as /v1/status of kvconnd has it", r.Namespace)
	case r.NodeURL != "" && r.Node == "" || r.BucketURL != "" && r.Bucket == "":
		return errors.New("node_url needs node, bucket_url needs bucket")
	}
	if strings.HasSuffix(r.Endpoint, "/v1") { // as clients of OpenAI's API have it
		return fmt.Errorf("endpoint %.64q: leave /v1 out, the router adds the paths", r.Endpoint)
	}
	for _, name := range append([]string{r.Model, r.Node, r.Bucket, r.CacheModel, r.Namespace, r.HashDomain}, r.Adapters...) {
		if len(name) > maxName {
			return fmt.Errorf("name %.32q… is longer than %d bytes", name, maxName)
		}
	}
	return errors.Join(validateURL("endpoint", r.Endpoint, true), validateURL("node_url", r.NodeURL, false),
		validateURL("bucket_url", r.BucketURL, false), r.validateDP(), validateSpeeds(r.Speeds), r.Events.validate())
}

// validateURL wants scheme, host and perhaps a path.
func validateURL(field, text string, required bool) error {
	if text == "" && !required {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("%s %.64q: want http://host:port", field, text)
	}
	return nil
}

func validateSpeeds(s policy.Speeds) error {
	for _, v := range []float64{s.PrefillTokens, s.DiskBytes, s.ObjectBytes, s.BytesPerToken} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("speed %v: a positive number, or 0 for unknown", v)
		}
	}
	return nil
}

func (e *Events) validate() error {
	switch {
	case e == nil:
		return nil
	case e.Endpoint == "":
		return errors.New("events.endpoint is empty")
	case len(e.Endpoint) > maxURL || len(e.ReplayEndpoint) > maxURL || len(e.Topic) > maxName:
		return errors.New("events: an endpoint or the topic is too long")
	}
	var err error
	if !e.Bind {
		err = validateConnect("events.endpoint", e.Endpoint)
	}
	return errors.Join(err, validateConnect("events.replay_endpoint", e.ReplayEndpoint))
}

// validateConnect wants an endpoint that can be connected to, unlike tcp://*:5557, which engines bind to. The
// feed checks the rest.
func validateConnect(field, endpoint string) error {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %.64q: want tcp://host:port", field, endpoint)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%s %.64q: %.16q is no port", field, endpoint, port)
	}
	if ip := net.ParseIP(host); host == "*" || host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%s %.64q is where the engine listens: name the engine's host, such as tcp://10.0.0.1:%s", field, endpoint, port)
	}
	return nil
}

// maxDPRank bounds the index of a data-parallel rank: ports end there.
const maxDPRank = 65535

func (r *Rank) validateDP() error {
	if r.DPRank < 0 || r.DPRank > maxDPRank || r.DPStartRank < 0 {
		return fmt.Errorf("dp_rank %d, dp_start_rank %d: 0 to %d", r.DPRank, r.DPStartRank, maxDPRank)
	}
	switch r.DPMode {
	case External, Internal:
		if r.DPStartRank != 0 {
			return fmt.Errorf("dp_start_rank is for dp_mode hybrid, this is %s", r.DPMode)
		}
	case Hybrid:
		if r.DPRank < r.DPStartRank {
			return fmt.Errorf("dp_rank %d is below dp_start_rank %d", r.DPRank, r.DPStartRank)
		}
	default:
		return fmt.Errorf("dp_mode %q: external, internal or hybrid", r.DPMode)
	}
	return nil
}

// Parse reads a rank from JSON, with defaults filled in. An unknown field is an error.
func Parse(b []byte) (Rank, error) {
	var r Rank
	err := Merge(&r, b)
	return r, err
}

// Merge changes the fields of r that the JSON object has, fills in defaults and checks the result. If there is
// an error it leaves r unchanged.
func Merge(r *Rank, b []byte) error {
	next := *r
	next.Adapters = slices.Clone(r.Adapters)
	if r.Events != nil {
		events := *r.Events
		next.Events = &events
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&next); err != nil {
		return fmt.Errorf("rank: %w", plainly(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("rank: more than one JSON value")
	}
	next.EnsureDefaults()
	if err := next.Validate(); err != nil {
		return err
	}
	*r = next
	return nil
}

// ParseFlag reads a rank from NAME=VALUE pairs with commas between, such as
// id=1,model=m,endpoint=http://10.0.0.1:8000,events=tcp://10.0.0.1:5557. Names are those of the JSON
// form; events and replay are the endpoints of events, and adapters have + between.
func ParseFlag(text string) (Rank, error) {
	fields, events, speeds := map[string]any{}, map[string]any{}, map[string]any{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return Rank{}, fmt.Errorf("rank %q: want NAME=VALUE pairs with commas between", text)
		}
		switch name {
		case "id", "dp_rank", "dp_start_rank", "max_active", "max_tokens", "block_size":
			fields[name] = json.Number(value)
		case "draining":
			fields[name] = value == "true"
		case "events":
			events["endpoint"] = value
		case "replay":
			events["replay_endpoint"] = value
		case "topic":
			events[name] = value
		case "bind":
			events[name] = value == "true"
		case "adapters":
			fields[name] = strings.Split(value, "+")
		case "prefill_tokens_per_s", "disk_bytes_per_s", "object_bytes_per_s", "bytes_per_token":
			speeds[name] = json.Number(value)
		default:
			fields[name] = value
		}
	}
	if len(events) > 0 {
		fields["events"] = events
	}
	if len(speeds) > 0 {
		fields["speeds"] = speeds
	}
	var r Rank
	b, err := json.Marshal(fields)
	if err == nil {
		r, err = Parse(b)
	}
	if err != nil {
		return Rank{}, fmt.Errorf("rank %q: %w", text, err)
	}
	return r, nil
}
