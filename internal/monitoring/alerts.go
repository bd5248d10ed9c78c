package monitoring

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Alert is a rule of Prometheus, and what to do when it fires.
type Alert struct {
	Name, Expr, For string
	// Severity is critical for what a person has to see at once, warning for the same day, info for the rest.
	Severity string
	// Summary is one line, with the labels of the series as {{ $labels.instance }}.
	Summary string
	// Meaning and Do are the runbook's: what has happened, and the steps to take.
	Meaning string
	Do      []string
}

// Runbook is where the runbook is found.
const Runbook = "https://github.com/kvconn/kvconn/blob/main/docs/runbook.md#"

const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
)

// Alerts returns the alerts of daemon and router.
func Alerts() []Alert {
	return append(daemonAlerts(), routerAlerts()...)
}

func daemonAlerts() []Alert {
	return []Alert{
		{
			Name: "KvconnDown", Expr: `up{job=~".*kvconn.*"} == 0`, For: "5m", Severity: critical,
			Summary: "{{ $labels.instance }} cannot be scraped",
			Meaning: "Prometheus gets no metrics from a daemon or a router. Engines of a daemon that is down go on without cache. The rule takes every job whose name contains `kvconn`.",
			Do: []string{
				"Look whether the process runs: `systemctl status kvconnd`, or the pod's state. If it was killed for memory, lower `host_bytes` or raise the limit.",
				"If it runs, look whether Prometheus may reach it: `http` must not be a loopback address, and the scrape must send `http_token` (a router: `token`) where one is set.",
			},
		},
		{
			Name: "KvconnUnhealthy", Expr: "kvconn_healthy == 0", For: "5m", Severity: critical,
			Summary: "kvconnd on {{ $labels.instance }} does not do its work",
			Meaning: "`/healthz` answers 503. `kvconn_fault{code}` says why.",
			Do: []string{
				"Run `kvconnd status` on the node, or ask `/healthz`: each reason has a remedy.",
				"[The codes of health](operations.md#health) say what each reason means.",
			},
		},
		{
			Name: "KvconnNotReady", Expr: "kvconn_ready == 0", For: "15m", Severity: warning,
			Summary: "engines cannot connect to kvconnd on {{ $labels.instance }}",
			Meaning: "The store is not open after 15 minutes. Its index may be being rebuilt after a crash: `kvconn_opening_ratio` grows then.",
			Do: []string{
				"If `kvconn_opening_ratio` grows, wait.",
				"If it does not, look for I/O errors in the kernel's log and for the daemon's last line in its own.",
			},
		},
		{
			Name: "KvconnCorruptRecords", Expr: "increase(kvconn_store_corrupt_records_total[1h]) > 0", For: "0m", Severity: info,
			Summary: "records on {{ $labels.instance }} failed verification",
			Meaning: "The disk returned other bytes than were written. The records were dropped and the engines computed those blocks: no answer was wrong.",
			Do: []string{
				"Look at the disk's own counters (`smartctl -a`, `nvme smart-log`) and for I/O errors in the kernel's log.",
				"If it goes on, replace the disk.",
			},
		},
		{
			Name: "KvconnDiskErrors", For: "0m", Severity: warning,
			Expr: "increase(kvconn_store_read_errors_total[15m]) + increase(kvconn_store_read_timeouts_total[15m]) + " +
				"increase(kvconn_store_write_errors_total[15m]) + increase(kvconn_store_barrier_errors_total[15m]) > 0",
			Summary: "the disk of the store on {{ $labels.instance }} fails or hangs",
			Meaning: "Reads, writes or barriers failed, or reads missed their deadline. Engines compute what they cannot load.",
			Do: []string{
				"Look for I/O errors in the kernel's log, and whether the file system is full or read-only.",
				"If only reads are late, another process may use the disk: look at `iostat -x 1`.",
			},
		},
		{
			Name: "KvconnFilesystemLow", Expr: "kvconn_store_filesystem_free_bytes < kvconn_store_min_free_bytes", For: "10m", Severity: warning,
			Summary: "the file system of the store on {{ $labels.instance }} has less free than min_free",
			Meaning: "Others fill the file system. The store has given back what it can, and cannot make more room.",
			Do: []string{
				"Find who fills it: `du -x --max-depth=2` on its mount point. Free space, or give the store a disk of its own.",
				"A lower `min_free` only helps if nobody else needs the space.",
			},
		},
		{
			Name: "KvconnSavesDropped", For: "15m", Severity: warning,
			Expr: "sum by (instance) (rate(kvconn_dropped_blocks_total[15m])) > 0.1 * " +
				"(sum by (instance) (rate(kvconn_dropped_blocks_total[15m])) + sum by (instance) (rate(kvconn_saved_blocks_total[15m])))",
			Summary: "more than a tenth of the blocks on {{ $labels.instance }} is not saved",
			Meaning: "Engines make blocks faster than the disk takes them, writes fail, or engines take blocks back before they were copied. Prompts with these blocks will not hit.",
			Do: []string{
				"If KvconnDiskErrors fires too, see there.",
				"Compare `kvconn_store_write_bytes_total` with what `kvconnd bench store` measures: a disk at its limit cannot take more.",
				"For bursts raise `save_staging_bytes` and `host_bytes`. Otherwise accept it, or set `prompts_only`.",
			},
		},
		{
			Name: "KvconnLoadsFailing", For: "10m", Severity: warning,
			Expr:    "sum by (instance) (rate(kvconn_loads_failed_total[10m])) > 0.05 * sum by (instance) (rate(kvconn_loads_total[10m]))",
			Summary: "more than 5% of the loads on {{ $labels.instance }} fail",
			Meaning: "Engines wait for loads and then compute after all. The daemon logs each with its first cause and a remedy.",
			Do: []string{
				"Look for `load failed` in the daemon's log: `first_cause` and `remedy` say what it is.",
				"Late blocks (`deadline`) mean a disk that is too slow or too busy: see KvconnDiskErrors.",
			},
		},
		{
			Name: "KvconnHitRateCollapsed", For: "30m", Severity: warning,
			Expr: "sum(rate(kvconn_offered_tokens_total[1h])) / sum(rate(kvconn_queried_tokens_total[1h])) < " +
				"0.5 * sum(rate(kvconn_offered_tokens_total[1h] offset 1d)) / sum(rate(kvconn_queried_tokens_total[1h] offset 1d))",
			Summary: "the hit rate is less than half of yesterday's",
			Meaning: "Prompts hit much less than at the same time yesterday.",
			Do: []string{
				"Was an engine, its model or a setting changed? That makes a new namespace, which starts cold: `kvconnd status` shows the namespaces of the engines.",
				"Does `kvconn_decisions_total{decision=\"refused\"}` grow? Then loading is slower than computing: see the measured speed of the tiers.",
				"Does `kvconn_store_evicted_records_total` grow fast? Then the cap is too small for what repeats.",
				"Otherwise the traffic has changed.",
			},
		},
		{
			Name: "KvconnMatchSlow", For: "10m", Severity: warning,
			Expr:    "histogram_quantile(0.99, sum by (instance, le) (rate(kvconn_match_duration_seconds_bucket[10m]))) > 0.05",
			Summary: "engines on {{ $labels.instance }} wait more than 50 ms for a match",
			Meaning: "An engine's scheduler stands still while it waits for a match. It should take less than a millisecond.",
			Do: []string{
				"Does the daemon get enough CPU? Look at its cgroup's throttling and at the load of the node.",
				"For TensorRT-LLM up to 50 ms is right: its matches wait for reads.",
			},
		},
		{
			Name: "KvconnEnginesWithoutCache", For: "15m", Severity: warning,
			Expr:    `(count(up{job=~".*(vllm|sglang).*"} == 1) > 0) and (sum(kvconn_engines) == 0)`,
			Summary: "engines run, and none is connected to kvconn",
			Meaning: "Prometheus scrapes engines, and no daemon has a connection of one. The rule takes jobs whose name contains `vllm` or `sglang`.",
			Do: []string{
				"Run `kvconnd doctor` beside an engine: it says whether the socket can be reached and used.",
				"Look for `kvconn` in the engine's log: it names the socket that it tried.",
				"`kvconn_connections_refused_total` grows if the engine's user [may not connect](configuration.md#who-may-connect).",
			},
		},
		{
			Name: "KvconnBucketDown", Expr: "kvconn_object_breaker_open == 1", For: "10m", Severity: warning,
			Summary: "the bucket of the object tier does not work for {{ $labels.instance }}",
			Meaning: "Requests to the bucket failed several times in a row, so it is not asked for a while. The tiers on the node are not affected.",
			Do:      []string{"Look for the warning with a remedy in the log: [object-tier.md](object-tier.md#warnings-in-the-log)."},
		},
		{
			Name: "KvconnCopierRestarts", Expr: "increase(kvconn_gpu_copier_starts_total[30m]) > 1", For: "0m", Severity: warning,
			Summary: "the copier of GPU {{ $labels.gpu }} on {{ $labels.instance }} was started several times",
			Meaning: "The process that copies for a GPU ended or hung: its driver failed. Loads under way failed, and engines computed instead.",
			Do:      []string{"Look for Xid errors in the kernel's log, and at `nvidia-smi`.", "[gpu.md](gpu.md) says what a copier needs."},
		},
	}
}

func routerAlerts() []Alert {
	return []Alert{
		{
			Name: "KvconnRouterNoRankReady", Expr: "kvconn_router_ranks_ready == 0", For: "1m", Severity: critical,
			Summary: "the router {{ $labels.instance }} has no rank to send requests to",
			Meaning: "Every request is answered with 503.",
			Do:      []string{"`GET /v1/ranks` says of each rank why it is not ready.", "If the engines are well, look whether the router can reach their `endpoint`, and at `health_path`."},
		},
		{
			Name: "KvconnRouterUnhealthy", Expr: "kvconn_router_healthy == 0", For: "5m", Severity: warning,
			Summary: "the router {{ $labels.instance }} does not do all of its work",
			Meaning: "`/healthz` answers 503: no rank is ready, what engines or stores tell cannot be used, so that requests are routed by load alone, or ranks cannot be looked for, so that those found last stay.",
			Do: []string{
				"Ask `/healthz` of the router: each reason has a remedy.",
				"With `discovery_failing`, `GET /v1/status` has the errors in `discovery.why`. New engines get no requests until it is mended.",
			},
		},
		{
			Name: "KvconnRouterFeedStale", For: "10m", Severity: warning,
			Expr: `sum by (instance) (kvconn_router_event_feeds{state=~"stale|refused|connecting"}) + ` +
				`sum by (instance) (kvconn_router_residency_feeds{state=~"stale|refused|connecting"}) > 0`,
			Summary: "the router {{ $labels.instance }} does not know what some ranks have cached",
			Meaning: "A feed of an engine's KV events or of a store is not followed. The router guesses what those ranks have from what it sent them.",
			Do: []string{
				"`GET /v1/ranks` has the state and the error of each feed.",
				"Is the engine's events port reachable from the router, and is `node_url` that of the node's daemon? A daemon with a token needs `node_token`.",
			},
		},
		{
			Name: "KvconnRouterRetries", For: "10m", Severity: warning,
			Expr:    "sum by (instance) (rate(kvconn_router_retries_total[10m])) > 0.05 * sum by (instance) (rate(kvconn_router_completions_total[10m]))",
			Summary: "the router {{ $labels.instance }} sends more than 5% of the requests a second time",
			Meaning: "Ranks refuse requests or fail before the first byte. Clients see longer times to the first token, not errors.",
			Do:      []string{"Look for `a rank failed a request` in the router's log: it names the rank.", "Engines that answer 429 or 503 are full: add ranks."},
		},
		{
			Name: "KvconnRouterErrors", For: "10m", Severity: critical,
			Expr: `sum by (instance) (rate(kvconn_router_completions_total{outcome=~"refused|failed|broken"}[10m])) > ` +
				"0.05 * sum by (instance) (rate(kvconn_router_completions_total[10m]))",
			Summary: "more than 5% of the requests to the router {{ $labels.instance }} fail",
			Meaning: "Clients get errors: no rank took the request (`refused`), every rank tried failed (`failed`), or an answer broke off (`broken`).",
			Do:      []string{"`kvconn_router_completions_total{outcome}` says which.", "The router's log names the ranks that fail, and `GET /v1/ranks` their state."},
		},
	}
}

// rules renders alerts as a file of Prometheus' rules.
func rules(alerts []Alert) ([]byte, error) {
	type rule struct {
		Alert       string            `yaml:"alert"`
		Expr        string            `yaml:"expr"`
		For         string            `yaml:"for"`
		Labels      map[string]string `yaml:"labels"`
		Annotations map[string]string `yaml:"annotations"`
	}
	type group struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	}
	groups := []group{{Name: "kvconn"}, {Name: "kvconn-router"}}
	for i := range alerts {
		a, g := &alerts[i], &groups[0]
		if strings.HasPrefix(a.Name, "KvconnRouter") {
			g = &groups[1]
		}
		g.Rules = append(g.Rules, rule{
			Alert: a.Name, Expr: a.Expr, For: a.For, Labels: map[string]string{"severity": a.Severity},
			Annotations: map[string]string{"summary": a.Summary, "description": a.Meaning, "runbook_url": Runbook + strings.ToLower(a.Name)},
		})
	}
	var out bytes.Buffer
	out.WriteString("# Made by go generate ./internal/monitoring: change internal/monitoring/alerts.go instead.\n")
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(map[string]any{"groups": groups}); err != nil {
		return nil, fmt.Errorf("alerts: %w", err)
	}
	return out.Bytes(), nil
}

// runbook renders what to do about alerts.
func runbook(alerts []Alert) []byte {
	var out bytes.Buffer
	out.WriteString(`# Runbook

<!-- Made by go generate ./internal/monitoring: change internal/monitoring/alerts.go instead. -->

What each alert of [deploy/monitoring/alerts.yaml](../deploy/monitoring/alerts.yaml) means, and what to do. *critical* is for a person
at once, *warning* for the same day, *info* for a look now and then. [operations.md](operations.md) has the background.
`)
	for i := range alerts {
		a := &alerts[i]
		fmt.Fprintf(&out, "\n## %s\n\n*%s*", a.Name, a.Severity)
		if a.For != "0m" {
			fmt.Fprintf(&out, ", once this has held for %s", a.For)
		}
		fmt.Fprintf(&out, ":\n\n```promql\n%s\n```\n\n%s\n\n", a.Expr, a.Meaning)
		for n, do := range a.Do {
			fmt.Fprintf(&out, "%d. %s\n", n+1, do)
		}
	}
	return out.Bytes()
}
