package monitoring

// Router returns the groups of the router's metrics.
func Router() []Group {
	return []Group{
		{
			Title: "Latency", Question: "How long do clients wait?",
			Names: []string{"kvconn_router_time_to_first_token_seconds", "kvconn_router_request_duration_seconds"},
			Panels: []Panel{
				{
					Title: "Time to first token by model", Unit: Seconds, Description: "Of streamed requests; tokenizing, retries and the engine's queue are included.",
					Queries: quantiles("kvconn_router_time_to_first_token_seconds", "model", "{{model}}"),
				},
				{Title: "Request duration by model", Unit: Seconds, Queries: quantiles("kvconn_router_request_duration_seconds", "model", "{{model}}")},
			},
		},
		{
			Title: "Requests", Question: "How do requests end?",
			Names: []string{
				"kvconn_router_completions_total", "kvconn_router_other_requests_total", "kvconn_router_retries_total", "kvconn_router_untokenized_total",
				"kvconn_router_requests_in_flight",
			},
			Panels: []Panel{
				{Title: "Requests by outcome", Unit: PerSecond, Stacked: true, Queries: []Query{{"sum by (outcome) (rate(kvconn_router_completions_total[5m]))", "{{outcome}}"}}},
				{Title: "Requests in flight", Unit: Count, Queries: []Query{{"sum(kvconn_router_requests_in_flight)", "in flight"}}},
				{
					Title: "Retries and untokenized requests", Unit: PerSecond, Description: "Load alone routes a request that no engine tokenized.",
					Queries: []Query{{"sum(rate(kvconn_router_retries_total[5m]))", "retries"}, {"sum(rate(kvconn_router_untokenized_total[5m]))", "untokenized"}},
				},
			},
		},
		{
			Title: "Decisions", Question: "Why do requests go where they go, and what is cached there?",
			Names: []string{
				"kvconn_router_decisions_total", "kvconn_router_decision_seconds", "kvconn_router_pins_missed_total", "kvconn_router_prompt_tokens_total",
				"kvconn_router_cached_tokens_total",
			},
			Panels: []Panel{
				{Title: "Decisions by reason", Unit: PerSecond, Stacked: true, Queries: []Query{{"sum by (reason) (rate(kvconn_router_decisions_total[5m]))", "{{reason}}"}}},
				{
					Title: "Expected hit rate by tier", Unit: Ratio, Stacked: true, Description: "The part of the prompt tokens that the router expects on the rank that it chose.",
					Queries: []Query{{"sum by (tier) (rate(kvconn_router_cached_tokens_total[5m])) / ignoring (tier) group_left () sum(rate(kvconn_router_prompt_tokens_total[5m]))", "{{tier}}"}},
				},
				{Title: "Time to choose a rank", Unit: Seconds, Queries: quantiles("kvconn_router_decision_seconds", "", "")},
			},
		},
		{
			Title: "Ranks", Question: "Which ranks get requests, and does the router know what they have?",
			Names:    []string{"kvconn_router_ranks", "kvconn_router_ranks_ready", "kvconn_router_rank_ready", "kvconn_router_event_feeds", "kvconn_router_residency_feeds"},
			Prefixes: []string{"kvconn_router_index_", "kvconn_router_discover"},
			Panels: []Panel{
				{Title: "Ranks", Unit: Count, Queries: []Query{{"max(kvconn_router_ranks)", "registered"}, {"min(kvconn_router_ranks_ready)", "ready"}}},
				{Title: "Feeds of engines' KV events", Unit: Count, Stacked: true, Queries: []Query{{"max by (state) (kvconn_router_event_feeds)", "{{state}}"}}},
				{Title: "Feeds of what stores hold", Unit: Count, Stacked: true, Queries: []Query{{"max by (state) (kvconn_router_residency_feeds)", "{{state}}"}}},
				{Title: "Ranks that do not get requests", Unit: Count, Needs: "the setting rank_metrics", Queries: []Query{{"min by (rank) (kvconn_router_rank_ready)", "rank {{rank}}"}}},
				{Title: "Blocks in the prefix index", Unit: Count, Queries: []Query{{"max(kvconn_router_index_blocks)", "blocks"}}},
				{Title: "Memory of the prefix index", Unit: Bytes, Queries: []Query{{"max(kvconn_router_index_bytes)", "index"}}},
			},
		},
		{
			Title: "Health", Question: "Does the router do its work?", Names: []string{"kvconn_router_healthy", "kvconn_router_build_info"},
			Prefixes: []string{"kvconn_router_spans_"},
			Panels: []Panel{
				{Title: "Healthy routers", Unit: Count, Queries: []Query{{"sum(kvconn_router_healthy)", "healthy"}, {"count(kvconn_router_healthy)", "all"}}},
				{Title: "Versions", Unit: Count, Stacked: true, Queries: []Query{{"count by (version, commit) (kvconn_router_build_info)", "{{version}} {{commit}}"}}},
			},
		},
	}
}
