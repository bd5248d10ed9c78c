package manual

// Router has the settings of kvconnd router.
func Router() []Group {
	return []Group{
		{"Ranks", "Which ranks are there, and which are ready?", []Setting{
			{"rank", "", "A rank as a flag has it; may be given several times. In the file: `ranks`, see [Ranks](router-ranks.md)."},
			{"discover", "", "Where ranks are looked for: see [Discovery](router-ranks.md#discovery). The flag may be given several times. In the file: `discovery`."},
			{"health_path", "", "Path that engines are checked with."},
			{"health_interval", "", "Time between checks of an engine. 0 turns them off, and all ranks count as ready."},
			{"rank_metrics", "", "Adds a series for each rank to `/metrics`: `kvconn_router_rank_ready{rank}`."},
		}},
		{"Which rank", "Where does a request go?", []Setting{
			{"policy", "", "See [Policies](router-policies.md)."},
			{"placement", "", "Where `conversation` places new ones: `round-robin`, `least-queued`, `least-tokens`."},
			{"beta", "", "Weight of load in `kv-aware`."},
			{"match_rate", "", "Part of the prompt that the best rank must have for matches to count in `kv-aware`."},
			{"decode_weight", "", "Charge of `cost` for decode load."},
			{"balance_weight", "", "Charge of `cost` on new prompts for ranks whose GPU recently took in more than others."},
			{"overlap_loads", "", "The engines load a prefix while they compute other prompts."},
			{"always_load", "", "The engines load every hit, even where computing is faster. Those with kvconn don't."},
			{"assume_kv_reuse", "", "Requests on a rank with equal prefixes share them while decoding (cascade attention): shared blocks count once."},
			{"predict_ttl", "", "How long a prompt that was routed counts as cached while the engine's events are on their way; it goes on while the prompt waits for its prefill."},
			{"approximate_ttl", "", "How long a prompt that was routed to an engine without KV events counts as cached there."},
			{"request_ttl", "", "A request that reports nothing for this long is forgotten."},
			{"index_bytes", "a quarter of the memory of machine or container, `2GiB` at most", "Memory of the prefix index; at least 1MiB, at most all memory."},
			{"max_prompt_tokens", "", "Longest prompt."},
		}},
		{"Requests", "How long may a request and a stop take?", []Setting{
			{"max_body_bytes", "", "Largest request."},
			{"tokenize_timeout", "", "Time in which an engine must have tokenized a prompt; then load alone decides."},
			{"max_tries", "", "Ranks that are tried for a request until the first byte of its answer."},
			{"first_byte_timeout", "", "Time that a rank has until the first byte, waiting included; the whole answer if it is not streamed."},
			{"stream_timeout", "", "Time that an answer may stand still."},
			{"drain_delay", "", "How long after SIGTERM the router still accepts requests, with `/readyz` 503. At most half of `drain_timeout`; 0 for not at all."},
			{"drain_timeout", "", "Time within which a stop ends, `drain_delay` included. Requests under way at its end are broken off."},
		}},
		{"HTTP, keys, log and trace", "Who may use the router, and what does it show?", []Setting{
			{"http", "", "Address of the router; port 0 picks a free one."},
			{"token", "", "Bearer token that clients have to send; required if `http` is not loopback."},
			{"engine_key", "", "API key of the engines."},
			{"node_token", "", "Bearer token of the nodes' daemons, their `http_token`. A router beside a daemon takes that daemon's by itself."},
			{"log_level", "", "`debug`, `info`, `warn`, `error`."},
			{"log_format", "", "`text` or `json`, to standard error."},
			{"otlp_endpoint", "", "Collector that OpenTelemetry spans of forwarded requests are sent to, by OTLP over HTTP (protobuf): `http://127.0.0.1:4318`. `/v1/traces` is added if the URL has no path. See [traces](metrics.md#traces-of-a-router)."},
			{"otlp_headers", "", "Headers for the collector, written as in `OTEL_EXPORTER_OTLP_HEADERS`. They are secret and never logged. To an `http://` collector they go unencrypted."},
			{"otlp_trace_ratio", "", "Share of the requests without a `traceparent` that begin a trace, 0 to 1. Requests with one follow its sampled flag."},
		}},
	}
}
