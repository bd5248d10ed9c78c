import { badge, bytes, chart, count, duration, el, faults, part, rates, ratio, show, speed, table } from "./common.js";

function draw(s, history) {
  document.getElementById("about").textContent = `${s.version}, up ${duration(s.uptime_s)}, store ${s.store.dir}`;
  const opening = s.opening ? `opening: ${s.opening.stage || ""}` : "";
  badge(s.health.ok ? opening || "good" : "unhealthy", s.health.ok);
  const notReady = s.engines.filter((e) => e.not_ready).map((e) => ({ detail: `Engine ${e.engine} is not ready`, remedy: e.not_ready }));
  const warnings = (s.store.warnings || []).map((w) => ({ detail: "The store: " + w, remedy: "" }));
  faults([...s.health.reasons, ...notReady, ...warnings]);

  const percent = (v) => (100 * v).toFixed(v < 0.1 ? 1 : 0) + "%";
  chart("hits", "Hit rate, of tokens that engines lacked", history.ages_s, [{ name: "hit rate", values: ratio(history, "offered_tokens_total", "queried_tokens_total") }], percent, 1);
  const line = (name, counter) => ({ name, values: rates(history, counter) });
  chart("loads", "Loads", history.ages_s, [line("all", "loaded_bytes_total"), line("from disk", "disk_read_bytes_total")], speed);
  chart("saves", "Saves", history.ages_s, [line("saved", "saved_bytes_total")], speed);
  chart("queue", "Loads under way", history.ages_s, [{ name: "loads", values: history.series.loads_in_flight }], count);

  table("tiers", "Tiers", s.tiers, [
    ["tier", (t) => t.tier],
    ["used", (t) => bytes(t.used_bytes), "n"],
    ["of", (t) => bytes(t.reachable_bytes), "n"],
    ["", (t) => el("meter", { min: 0, max: t.reachable_bytes || 1, value: t.used_bytes, "aria-label": `${t.tier}: ${part(t.used_bytes, t.reachable_bytes)} full` })],
    ["records", (t) => count(t.records), "n"],
    ["hits", (t) => count(t.hits), "n"],
    ["speed", (t) => speed(t.load_bytes_per_s), "n"],
  ], "The store is being opened.");

  table("engines", "Engines", s.engines, [
    ["engine", (e) => e.engine],
    ["model", (e) => e.model],
    ["client", (e) => e.client],
    ["ranks", (e) => s.ranks.filter((r) => r.engine === e.engine && r.registered).length + " of " + e.ranks_needed, "n"],
    ["requests", (e) => count(e.requests.requests), "n"],
    ["asked tokens", (e) => count(e.requests.queried_tokens), "n"],
    ["hits", (e) => part(e.requests.offered_tokens, e.requests.queried_tokens), "n"],
    ["prefill", (e) => (e.requests.prefill_tokens_per_s > 0 ? count(e.requests.prefill_tokens_per_s) + " tokens/s" : "–"), "n"],
    ["failed loads", (e) => count(e.requests.failed_loads), "n"],
    ["connected", (e) => duration(e.connected_s), "n"],
  ], "No engine is connected. `kvconnd config vllm` prints what an engine needs.");

  table("models", "Models", s.models || [], [
    ["model", (m) => m.model],
    ["on disk", (m) => bytes(m.bytes), "n"],
    ["records", (m) => count(m.records), "n"],
    ["namespaces", (m) => count(m.namespaces), "n"],
  ], "Nothing is stored yet.");

  document.getElementById("gpus-section").hidden = !(s.gpus && s.gpus.length);
  table("gpus", "GPUs", s.gpus || [], [
    ["GPU", (g) => g.name],
    ["id", (g) => g.uuid],
    ["driver", (g) => "CUDA " + g.driver],
    ["loaded", (g) => bytes(g.loaded_bytes), "n"],
    ["saved", (g) => bytes(g.saved_bytes), "n"],
    ["copier", (g) => (g.running ? "runs" : "ended: " + (g.last_error || "")), "words"],
  ], "");
}

show(["/v1/status", "/v1/history"], draw);
