import { badge, chart, count, duration, faults, part, rates, ratio, show, table } from "./common.js";

const reasons = {
  score: "the lowest cost", round_robin: "its turn", pin: "the client asked for it", conversation: "its conversation lives there",
  new_conversation: "a new conversation", overflow: "its conversation's rank was full", warmup: "it had no request yet", content: "equal content went there",
  no_ranks: "no rank is ready", all_full: "all ranks are full", fair_share: "beyond its fair share", pin_unknown: "the pinned rank is unknown",
  pin_not_ready: "the pinned rank is not ready", pin_full: "the pinned rank is full", invalid: "the request is invalid",
};

function draw(s, list, history, recent) {
  document.getElementById("about").textContent = `${s.version}, up ${duration(s.uptime_s)}, policy ${s.policy}, models: ${s.models.join(", ") || "none"}`;
  badge(s.draining ? "stopping" : s.health.ok ? `good, ${s.ready} of ${list.ranks.length} ranks ready` : "unhealthy", s.health.ok && !s.draining);
  faults(s.health.reasons);

  const percent = (v) => (100 * v).toFixed(v < 0.1 ? 1 : 0) + "%";
  chart("requests", "Requests", history.ages_s, [
    { name: "answered", values: rates(history, "ok_total") }, { name: "failed", values: rates(history, "failed_total") },
  ], (v) => v.toPrecision(2) + "/s");
  chart("hits", "Part of prompts found", history.ages_s, [
    { name: "in a GPU", values: ratio(history, "gpu_tokens_total", "prompt_tokens_total") },
    { name: "on disk", values: ratio(history, "disk_tokens_total", "prompt_tokens_total") },
    { name: "in the bucket", values: ratio(history, "object_tokens_total", "prompt_tokens_total") },
  ], percent, 1);
  chart("flight", "Requests under way", history.ages_s, [{ name: "requests", values: history.series.in_flight }], count);

  const most = Math.max(1, ...list.ranks.map((r) => r.load.prompt_tokens || 0));
  table("ranks", "Ranks", list.ranks, [
    ["rank", (r) => String(r.id), "n"],
    ["model", (r) => r.model],
    ["engine", (r) => r.endpoint],
    ["node", (r) => r.node || "–"],
    ["state", (r) => (r.ready ? "ready" : r.why || "not ready"), "words"],
    ["requests", (r) => count(r.load.active_requests || 0), "n"],
    ["prompt tokens", (r) => bar(r.load.prompt_tokens || 0, most)],
    ["queued tokens", (r) => count(r.load.queued_tokens || 0), "n"],
    ["GPU blocks", (r) => count(r.gpu_blocks), "n"],
    ["events", (r) => (r.event_feed ? r.event_feed.state : "none")],
    ["disk", (r) => (r.disk_feed ? r.disk_feed.state : "none")],
  ], "No ranks: add them to the configuration, or with POST /v1/ranks.");

  table("decisions", "Decisions", recent.decisions, [
    ["ago", (d) => duration(d.age_s), "n"],
    ["model", (d) => d.model],
    ["tokens", (d) => count(d.prompt_tokens), "n"],
    ["rank", (d) => (d.rank < 0 ? "none" : String(d.rank)), "n"],
    ["why", (d) => d.error || reasons[d.reason] || d.reason, "words"],
    ["in its GPU", (d) => part(d.gpu_tokens, d.prompt_tokens), "n"],
    ["from disk", (d) => part(d.load_disk_tokens, d.prompt_tokens), "n"],
    ["from the bucket", (d) => part(d.load_object_tokens, d.prompt_tokens), "n"],
    ["to compute", (d) => count(Math.max(d.prompt_tokens - d.cached_tokens, 0)), "n"],
  ], "No request yet.");
}

function bar(value, most) {
  const meter = document.createElement("meter");
  meter.max = most;
  meter.value = value;
  meter.setAttribute("aria-label", count(value) + " tokens");
  const span = document.createElement("span");
  span.append(meter, " " + count(value));
  return span;
}

show(["/v1/status", "/v1/ranks", "/v1/history", "/v1/decisions"], draw);
