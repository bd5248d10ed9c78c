package monitoring

const (
	needsBucket = "a bucket"
	needsGPU    = "an engine whose memory is on a GPU"
)

func object() Group {
	return Group{
		Title: "Object", Question: "What does the bucket deliver, and what does it cost? Without a bucket these are 0, or have no series.", Prefixes: []string{"kvconn_object_"},
		Panels: []Panel{
			{Title: "Requests to the bucket", Unit: PerSecond, Needs: needsBucket, Queries: []Query{{"sum by (kind) (rate(kvconn_object_requests_total[5m]))", "{{kind}}"}}},
			{
				Title: "Bytes from and to the bucket", Unit: BytesPerSecond, Needs: needsBucket,
				Queries: []Query{{"sum(rate(kvconn_object_read_bytes_total[5m]))", "read"}, {"sum(rate(kvconn_object_written_bytes_total[5m]))", "written"}},
			},
			{Title: "Records that wait for upload", Unit: Count, Needs: needsBucket, Queries: []Query{
				{"sum(kvconn_object_queue_records)", "waiting"}, {"sum(rate(kvconn_object_dropped_records_total[5m]))", "dropped per second"},
			}},
			{
				Title: "Trouble with the bucket", Unit: Count, Needs: needsBucket,
				Queries: []Query{{"sum(kvconn_object_breaker_open)", "nodes that do not ask it"}, {"max(kvconn_object_lists_wait_seconds)", "oldest list not published, in seconds"}},
			},
			{Title: "Estimated cost a day", Unit: Dollars, Needs: needsBucket, Queries: []Query{
				{"sum(kvconn_object_request_cost_dollars_per_day)", "requests"}, {"max(kvconn_object_storage_cost_dollars_per_day)", "storage"},
			}},
		},
	}
}

func engines() Group {
	return Group{
		Title: "Engines", Question: "Which engines and ranks are connected?",
		Names:    []string{"kvconn_engines", "kvconn_ranks", "kvconn_protocol_errors_total"},
		Prefixes: []string{"kvconn_connections", "kvconn_model_"},
		Panels: []Panel{
			{Title: "Engines by model", Unit: Count, Queries: []Query{{"sum by (model) (kvconn_model_engines)", "{{model}}"}}},
			{Title: "Ranks and connections", Unit: Count, Queries: []Query{{"sum(kvconn_ranks)", "ranks"}, {"sum(kvconn_connections)", "connections"}}},
			{Title: "Clients that were turned away", Unit: PerSecond, Queries: []Query{
				{"sum(rate(kvconn_connections_refused_total[5m]))", "refused"}, {"sum(rate(kvconn_protocol_errors_total[5m]))", "broke the protocol"},
			}},
		},
	}
}

func gpus() Group {
	return Group{
		Title: "GPU", Question: "Do copies to and from GPUs work? There is a series for each GPU that engines have memory on.", Prefixes: []string{"kvconn_gpu_"},
		Panels: []Panel{
			{
				Title: "Bytes copied by GPU", Unit: BytesPerSecond, Needs: needsGPU,
				Queries: []Query{{"sum by (gpu) (rate(kvconn_gpu_loaded_bytes_total[5m]))", "to {{gpu}}"}, {"sum by (gpu) (rate(kvconn_gpu_saved_bytes_total[5m]))", "from {{gpu}}"}},
			},
			{
				Title: "Starts of copiers", Unit: Count, Needs: needsGPU, Description: "More than one by GPU means that its driver failed or hung.",
				Queries: []Query{{"max by (gpu) (kvconn_gpu_copier_starts_total)", "{{gpu}}"}},
			},
		},
	}
}

func events() Group {
	return Group{
		Title: "KV events", Question: "Do other routers get the published KV events? Without the setting these are 0.", Prefixes: []string{"kvconn_publish_"},
	}
}

func health() Group {
	return Group{
		Title: "Health", Question: "Does the daemon do its work?",
		Names:    []string{"kvconn_healthy", "kvconn_ready", "kvconn_fault", "kvconn_opening_ratio", "kvconn_build_info"},
		Prefixes: []string{"kvconn_http_", "kvconn_trace_", "kvconn_spans_"},
		Panels: []Panel{
			{Title: "Healthy and ready", Unit: Count, Queries: []Query{{"sum(kvconn_healthy)", "healthy daemons"}, {"sum(kvconn_ready)", "ready daemons"}, {"count(kvconn_healthy)", "all"}}},
			{Title: "Faults", Unit: Count, Description: "The codes of /healthz.", Queries: []Query{{"sum by (code) (kvconn_fault)", "{{code}}"}}},
			{Title: "Versions", Unit: Count, Stacked: true, Queries: []Query{{"count by (version, commit) (kvconn_build_info)", "{{version}} {{commit}}"}}},
			{
				Title: "Memory of the process", Unit: Bytes, Description: "The host tier is shared memory, and counts once it was used.",
				Queries: []Query{{"max(process_resident_memory_bytes and on (instance) kvconn_build_info)", "largest"}},
			},
		},
	}
}
