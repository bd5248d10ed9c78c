package monitoring

// Daemon returns the groups of the daemon's metrics.
func Daemon() []Group {
	return []Group{hits(), loads(), saves(), disk(), host(), object(), engines(), gpus(), events(), health()}
}

func hits() Group {
	return Group{
		Title: "Hits", Question: "How much of the prompts does the cache save?",
		Names: []string{
			"kvconn_prompt_tokens_total", "kvconn_queried_tokens_total", "kvconn_offered_tokens_total", "kvconn_decisions_total", "kvconn_requests",
			"kvconn_tier_hit_records_total", "kvconn_store_hit_blocks_total", "kvconn_store_lookup_blocks_total",
			"kvconn_model_prefill_tokens_per_second", "kvconn_model_trimming_engines",
		},
		Prefixes: []string{"kvconn_match"},
		Panels: []Panel{
			{
				Title: "Prompt tokens by source", Unit: PerSecond, Stacked: true, Description: "Where all prompt tokens come from. Less computed is better.",
				Queries: []Query{{"sum by (source) (rate(kvconn_prompt_tokens_total[5m]))", "{{source}}"}},
			},
			{
				Title: "Hit rate", Unit: Ratio, Description: "Of the tokens that engines did not have themselves, the part that the tiers offered.",
				Queries: []Query{{"sum(rate(kvconn_offered_tokens_total[5m])) / sum(rate(kvconn_queried_tokens_total[5m]))", "all models"}},
			},
			{
				Title: "Hit rate by model", Unit: Ratio,
				Queries: []Query{{"sum by (model) (rate(kvconn_offered_tokens_total[5m])) / sum by (model) (rate(kvconn_queried_tokens_total[5m]))", "{{model}}"}},
			},
			{
				Title: "Decisions about hits", Unit: PerSecond, Stacked: true, Description: "Trimmed and refused hits would have taken longer to load than to compute.",
				Queries: []Query{{"sum by (decision) (rate(kvconn_decisions_total[5m]))", "{{decision}}"}},
			},
			{
				Title: "Match duration", Unit: Seconds, Description: "Engines' schedulers wait for it.",
				Queries: quantiles("kvconn_match_duration_seconds", "", ""),
			},
			{
				Title: "Prefill speed by model", Unit: PerSecond, Description: "Tokens per second that decisions compare loads with. 0 while it is not known.",
				Queries: []Query{{"max by (model) (kvconn_model_prefill_tokens_per_second)", "{{model}}"}},
			},
		},
	}
}

func loads() Group {
	return Group{
		Title: "Loads", Question: "How fast do blocks come back, and do loads fail?",
		Names:    []string{"kvconn_failed_blocks_total", "kvconn_failed_requests_total", "kvconn_tier_load_bytes_per_second"},
		Prefixes: []string{"kvconn_load"},
		Panels: []Panel{
			{Title: "Bytes loaded", Unit: BytesPerSecond, Stacked: true, Queries: []Query{{"sum by (model) (rate(kvconn_loaded_bytes_total[5m]))", "{{model}}"}}},
			{
				Title: "Load duration by tier", Unit: Seconds, Description: "By the slowest tier that a load read from.",
				Queries: quantiles("kvconn_load_duration_seconds", "tier", "{{tier}}"),
			},
			{
				Title: "Wait for the first block of a load", Unit: Seconds, Description: "The wait for memory, for the disk's queue and for the first read.",
				Queries: quantiles("kvconn_load_wait_seconds", "", ""),
			},
			{
				Title: "Loads that ended", Unit: PerSecond,
				Queries: []Query{
					{"sum(rate(kvconn_loads_total[5m]))", "all"}, {"sum(rate(kvconn_loads_failed_total[5m]))", "failed"},
					{"sum(rate(kvconn_loads_cancelled_total[5m]))", "cancelled"},
				},
			},
			{
				Title: "Loads that run or wait", Unit: Count,
				Queries: []Query{{"sum(kvconn_loads_in_flight)", "running"}, {"sum(kvconn_host_waiting_loads)", "waiting for memory"}},
			},
			{Title: "Measured speed of the tiers", Unit: BytesPerSecond, Queries: []Query{{"max by (tier) (kvconn_tier_load_bytes_per_second)", "{{tier}}"}}},
		},
	}
}

func saves() Group {
	return Group{
		Title: "Saves", Question: "Do engines' blocks reach the store?",
		Names: []string{"kvconn_dropped_blocks_total"}, Prefixes: []string{"kvconn_save"},
		Panels: []Panel{
			{Title: "Bytes saved", Unit: BytesPerSecond, Stacked: true, Queries: []Query{{"sum by (model) (rate(kvconn_saved_bytes_total[5m]))", "{{model}}"}}},
			{
				Title: "Blocks saved and dropped", Unit: PerSecond, Description: "Dropped blocks found no room: the disk cannot keep up.",
				Queries: []Query{{"sum(rate(kvconn_saved_blocks_total[5m]))", "saved"}, {"sum(rate(kvconn_dropped_blocks_total[5m]))", "dropped"}},
			},
			{Title: "Save duration", Unit: Seconds, Queries: quantiles("kvconn_save_duration_seconds", "", "")},
			{
				Title: "Wait of saves for earlier ones", Unit: Seconds, Description: "Engines whose memory is on a GPU, and engines with keys of their own, save in the background.",
				Queries: quantiles("kvconn_save_wait_seconds", "", ""),
			},
		},
	}
}

func disk() Group {
	return Group{
		Title: "Disk", Question: "How full is the store, and is the disk well?",
		Names: []string{"kvconn_tier_records", "kvconn_tier_used_bytes", "kvconn_tier_max_bytes"}, Prefixes: []string{"kvconn_store_"},
		Panels: []Panel{
			{
				Title: "Size of the store", Unit: Bytes,
				Queries: []Query{
					{"sum(kvconn_store_physical_bytes)", "used and reserved"}, {"sum(kvconn_store_effective_max_bytes)", "can reach now"},
					{"sum(kvconn_store_max_bytes)", "cap"},
				},
			},
			{
				Title: "Free space of the file system", Unit: Bytes,
				Queries: []Query{{"min(kvconn_store_filesystem_free_bytes)", "free, least of all nodes"}, {"max(kvconn_store_min_free_bytes)", "left free"}},
			},
			{Title: "Bytes read and written", Unit: BytesPerSecond, Queries: []Query{
				{"sum(rate(kvconn_store_read_bytes_total[5m]))", "read"}, {"sum(rate(kvconn_store_write_bytes_total[5m]))", "written"},
			}},
			{
				Title: "Errors of the disk", Unit: PerSecond, Description: "Each read that fails costs a computation, never a wrong answer.",
				Queries: []Query{
					{"sum(rate(kvconn_store_read_errors_total[5m]))", "reads"}, {"sum(rate(kvconn_store_read_timeouts_total[5m]))", "reads that were late"},
					{"sum(rate(kvconn_store_write_errors_total[5m]))", "writes"}, {"sum(rate(kvconn_store_barrier_errors_total[5m]))", "barriers"},
					{"sum(rate(kvconn_store_corrupt_records_total[5m]))", "corrupt records"},
				},
			},
			{Title: "Read latency and queue", Unit: Seconds, Queries: []Query{{"max(kvconn_store_read_latency_seconds)", "latency, worst of all nodes"}}},
			{Title: "Records written and evicted", Unit: PerSecond, Queries: []Query{
				{"sum(rate(kvconn_store_writes_total[5m]))", "written"}, {"sum(rate(kvconn_store_evicted_records_total[5m]))", "evicted"},
			}},
			{Title: "Records by tier", Unit: Count, Queries: []Query{{"sum by (tier) (kvconn_tier_records)", "{{tier}}"}}},
		},
	}
}

func host() Group {
	return Group{
		Title: "Host", Question: "Is the host tier's memory large enough?", Prefixes: []string{"kvconn_host_"},
		Panels: []Panel{
			{Title: "Memory of the host tier", Unit: Bytes, Queries: []Query{
				{`sum(kvconn_tier_max_bytes{tier="host"})`, "size"}, {`sum(kvconn_tier_used_bytes{tier="host"})`, "used"}, {"sum(kvconn_host_pinned_bytes)", "held by loads and saves"},
			}},
			{Title: "Records found by tier", Unit: PerSecond, Queries: []Query{{"sum by (tier) (rate(kvconn_tier_hit_records_total[5m]))", "{{tier}}"}}},
			{
				Title: "Records read ahead", Unit: PerSecond, Description: "Wasted records were evicted before their load.",
				Queries: []Query{
					{"sum(rate(kvconn_host_prefetched_records_total[5m]))", "read"}, {"sum(rate(kvconn_host_prefetch_used_records_total[5m]))", "used"},
					{"sum(rate(kvconn_host_prefetch_wasted_records_total[5m]))", "wasted"},
				},
			},
			{Title: "Refused for want of memory", Unit: PerSecond, Queries: []Query{{"sum(rate(kvconn_host_refused_saves_total[5m]))", "saves"}}},
		},
	}
}
