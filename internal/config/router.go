package config

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Router are the settings of `kvconnd router`. The tags are as those of [Serve]. The YAML file also has
// the list of ranks: see [ReadFile].
type Router struct {
	HTTP             string        `name:"http" env:"KVCONN_ROUTER_HTTP" default:"127.0.0.1:9478" placeholder:"ADDR" help:"Address of the router; port 0 picks a free one. One that is not loopback needs a token (default 127.0.0.1:9478)."`
	Token            string        `name:"token" env:"KVCONN_ROUTER_TOKEN" secret:"true" placeholder:"TOKEN" help:"Bearer token that clients have to send. Set it in the environment or the file: a command line can be seen by others."`
	EngineKey        string        `name:"engine-key" env:"KVCONN_ROUTER_ENGINE_KEY" secret:"true" placeholder:"KEY" help:"API key of the engines. Without it and a token, the client's own Authorization header is passed on."`
	NodeToken        string        `name:"node-token" env:"KVCONN_ROUTER_NODE_TOKEN" secret:"true" placeholder:"TOKEN" help:"Bearer token of the nodes' daemons: their http_token. Set it in the environment or the file."`
	Ranks            []string      `name:"rank" env:"KVCONN_ROUTER_RANKS" sep:";" placeholder:"FIELDS" help:"A rank, such as 'id=0,model=m,endpoint=http://10.0.0.1:8000,events=tcp://10.0.0.1:5557'. May be given several times. Ranks of the file's list 'ranks' count as well."`
	Discover         []string      `name:"discover" env:"KVCONN_ROUTER_DISCOVER" sep:";" placeholder:"JSON" help:"Where to look for ranks, such as '{\"file\": \"/etc/kvconn/ranks.yaml\"}'. May be given several times. Entries of the file's list 'discovery' count as well."`
	Policy           string        `name:"policy" env:"KVCONN_ROUTER_POLICY" default:"cost" placeholder:"NAME" help:"cost, kv-aware, kv-aware-gpu, load, round-robin, conversation or serve-kv-aware; first-turn/NAME and conversation/NAME put these in front of another; published/load, published/kv-aware, published/kv-aware-warmup and published/conversation answer exactly as TensorRT-LLM (default cost)."`
	Placement        string        `name:"placement" env:"KVCONN_ROUTER_PLACEMENT" default:"round-robin" enum:"round-robin,least-queued,least-tokens" help:"Where the policy conversation places new ones: round-robin, least-queued or least-tokens."`
	Beta             float64       `name:"beta" env:"KVCONN_ROUTER_BETA" default:"1" placeholder:"N" help:"Weight of load in the policy kv-aware (default 1)."`
	MatchRate        float64       `name:"match-rate" env:"KVCONN_ROUTER_MATCH_RATE" default:"0.1" placeholder:"N" help:"Part of the prompt that the best rank must have for matches to count in the policy kv-aware (default 0.1)."`
	DecodeWeight     float64       `name:"decode-weight" env:"KVCONN_ROUTER_DECODE_WEIGHT" default:"0.1" placeholder:"N" help:"What the policy cost charges for decode load; 0: nothing (default 0.1)."`
	BalanceWeight    float64       `name:"balance-weight" env:"KVCONN_ROUTER_BALANCE_WEIGHT" default:"1" placeholder:"N" help:"What the policy cost charges new prompts for ranks whose GPU recently took in more than others; 0: nothing (default 1)."`
	OverlapLoads     bool          `name:"overlap-loads" env:"KVCONN_ROUTER_OVERLAP_LOADS" help:"The engines load a prefix while they compute other prompts."`
	AlwaysLoad       bool          `name:"always-load" env:"KVCONN_ROUTER_ALWAYS_LOAD" help:"The engines load every hit, even where computing is faster. Those with kvconn don't."`
	AssumeKVReuse    bool          `name:"assume-kv-reuse" env:"KVCONN_ROUTER_ASSUME_KV_REUSE" help:"Requests on a rank with equal prefixes share them while decoding (cascade attention)."`
	PredictTTL       time.Duration `name:"predict-ttl" env:"KVCONN_ROUTER_PREDICT_TTL" default:"5s" help:"How long a prompt that was routed counts as cached while the engine's events are on their way; it goes on while the prompt waits for its prefill."`
	ApproximateTTL   time.Duration `name:"approximate-ttl" env:"KVCONN_ROUTER_APPROXIMATE_TTL" default:"2m" help:"How long a prompt that was routed to an engine without KV events counts as cached there."`
	RequestTTL       time.Duration `name:"request-ttl" env:"KVCONN_ROUTER_REQUEST_TTL" default:"5m" help:"A request that reports nothing for this long is forgotten."`
	IndexBytes       Bytes         `name:"index-bytes" env:"KVCONN_ROUTER_INDEX_BYTES" default:"0B" placeholder:"SIZE" help:"Memory of the prefix index. Default: a quarter of the memory of machine or cgroup, 2GiB at most."`
	MaxPromptTokens  int           `name:"max-prompt-tokens" env:"KVCONN_ROUTER_MAX_PROMPT_TOKENS" default:"2097152" placeholder:"N" help:"Longest prompt (default 2097152)."`
	MaxBodyBytes     Bytes         `name:"max-body-bytes" env:"KVCONN_ROUTER_MAX_BODY_BYTES" default:"64MiB" placeholder:"SIZE" help:"Largest request (default 64MiB)."`
	TokenizeTimeout  time.Duration `name:"tokenize-timeout" env:"KVCONN_ROUTER_TOKENIZE_TIMEOUT" default:"2s" help:"Time in which an engine must have tokenized a prompt; then load alone decides."`
	MaxTries         int           `name:"max-tries" env:"KVCONN_ROUTER_MAX_TRIES" default:"3" placeholder:"N" help:"Ranks that are tried for a request until the first byte of its answer (default 3)."`
	FirstByteTimeout time.Duration `name:"first-byte-timeout" env:"KVCONN_ROUTER_FIRST_BYTE_TIMEOUT" default:"5m" help:"Time that a rank has until the first byte, waiting included; until the whole answer if it is not streamed."`
	StreamTimeout    time.Duration `name:"stream-timeout" env:"KVCONN_ROUTER_STREAM_TIMEOUT" default:"2m" help:"Time that an answer may stand still."`
	HealthPath       string        `name:"health-path" env:"KVCONN_ROUTER_HEALTH_PATH" default:"/health" placeholder:"PATH" help:"Path with which engines are checked (default /health)."`
	HealthInterval   time.Duration `name:"health-interval" env:"KVCONN_ROUTER_HEALTH_INTERVAL" default:"5s" help:"Time between checks of an engine. 0 turns them off, and all ranks count as ready."`
	DrainTimeout     time.Duration `name:"drain-timeout" env:"KVCONN_ROUTER_DRAIN_TIMEOUT" default:"25s" help:"Time within which a stop ends: requests under way at the end of it are broken off."`
	DrainDelay       time.Duration `name:"drain-delay" env:"KVCONN_ROUTER_DRAIN_DELAY" default:"5s" help:"How long after SIGTERM the router still accepts requests, with /readyz 503, so that balancers learn of the stop; at most half of --drain-timeout."`
	RankMetrics      bool          `name:"rank-metrics" env:"KVCONN_ROUTER_RANK_METRICS" help:"Export a metric for each rank: whether it gets requests."`
	RouterOTLP
	LogLevel  string `name:"log-level" env:"KVCONN_ROUTER_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Lowest level of log lines: debug, info, warn or error."`
	LogFormat string `name:"log-format" env:"KVCONN_ROUTER_LOG_FORMAT" default:"text" enum:"text,json" help:"Form of log lines: text or json."`
}

const (
	// minIndexBytes is the least memory that the prefix index takes, maxIndexBytes the most if none is set.
	minIndexBytes = 1 << 20
	maxIndexBytes = 2 << 30
	// indexShare is the part of the memory that it takes then.
	indexShare = 4
)

// EnsureDefaults fills in the defaults that depend on memory, the bytes that the process may have.
func (s *Router) EnsureDefaults(memory int64) {
	if s.IndexBytes == 0 {
		s.IndexBytes = Bytes(max(minIndexBytes, min(maxIndexBytes, memory/indexShare)))
	}
}

// Validate reports the first setting that cannot work, by its name. Ranks and the policy's name are
// checked where they are used.
func (s *Router) Validate() error {
	switch {
	case s.PredictTTL <= 0 || s.ApproximateTTL <= 0 || s.RequestTTL <= 0:
		return errors.New("predict_ttl, approximate_ttl and request_ttl must be positive")
	case !(s.Beta >= 0 && s.DecodeWeight >= 0 && s.BalanceWeight >= 0) || math.IsInf(s.Beta+s.DecodeWeight+s.BalanceWeight, 1):
		return errors.New("beta, decode_weight and balance_weight must be numbers, and not negative")
	case !(s.MatchRate >= 0 && s.MatchRate <= 1):
		return fmt.Errorf("match_rate is %v: want 0 to 1", s.MatchRate)
	case s.IndexBytes != 0 && s.IndexBytes < minIndexBytes:
		return fmt.Errorf("index_bytes is %s: at least %s, or 0", s.IndexBytes, Bytes(minIndexBytes))
	case s.MaxPromptTokens < 1:
		return errors.New("max_prompt_tokens must be positive")
	case s.MaxBodyBytes < 1:
		return errors.New("max_body_bytes must be positive")
	case s.TokenizeTimeout <= 0 || s.FirstByteTimeout <= 0 || s.StreamTimeout <= 0 || s.DrainTimeout <= 0:
		return errors.New("tokenize_timeout, first_byte_timeout, stream_timeout and drain_timeout must be positive")
	case s.DrainDelay < 0:
		return errors.New("drain_delay is negative")
	case s.MaxTries < 1:
		return errors.New("max_tries must be positive")
	case !strings.HasPrefix(s.HealthPath, "/"):
		return fmt.Errorf("health_path is %q: must begin with /", s.HealthPath)
	case s.HealthInterval < 0:
		return errors.New("health_interval is negative")
	}
	return errors.Join((*OTLP)(&s.RouterOTLP).validate(), checkToken("token", s.Token), checkToken("node_token", s.NodeToken),
		checkAddress("http", s.HTTP, "HOST:PORT", s.Token != "", "set a token (KVCONN_ROUTER_TOKEN); TLS is for a proxy in front"))
}
