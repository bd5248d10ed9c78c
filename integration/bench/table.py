"""The result as Markdown. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from results import CASES, ON_DISK, Harm, Ratios, Result, Throughput, burst_throughput, least, pick, ratios

BEGIN, END = "<!-- comparison:begin -->", "<!-- comparison:end -->"
NOTHING = ""


def markdown(result: Result) -> str:
    """Return all tables."""
    names = [name for name in result.titles if name not in result.not_run]
    parts = [_heading(result), _speed(result, names), _costs(result, names), _damage(result, names)]
    if result.not_run:
        rows = [f"- {result.titles[name]}: {reason}." for name, reason in result.not_run.items()]
        parts.append("Not run:\n\n" + "\n".join(rows))
    if result.left_out:
        parts.append("Left out of this run:\n\n" + "\n".join(f"- {what}" for what in result.left_out))
    return "\n\n".join(part for part in parts if part)


def replace_between_markers(document: Path, text: str) -> None:
    """Put the tables into a document, in the place of those that it has."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no markers {BEGIN} and {END}")
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _heading(result: Result) -> str:
    machine = result.machine
    systems = "; ".join(
        f"{result.titles[name]}: " + ", ".join(f"{package} {version}" for package, version in packages.items())
        for name, packages in result.versions.items()
    )
    return (
        f"Measured {result.date} on {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']} GiB of memory, Linux {machine['kernel']}, load {machine['load']} at the start; "
        f"{result.settings['rounds_done']} of {result.settings['rounds']} rounds, seed {result.settings['seed']}"
        f"{', sizes of `--quick`' if result.settings['quick'] else ''}.\n\nVersions: {systems}."
    )


def _speed(result: Result, names: Sequence[str]) -> str:
    names = [name for name in names if any(s.system == name for s in result.samples)]
    lengths = sorted({s.tokens for s in result.samples if s.workload == "restart"})
    rows: list[tuple[str, Callable[[str], Ratios | None], Callable[[Ratios], str]]] = []

    def row(
        label: str, value: Callable[[Ratios], str], workload: str, phase: str | None = None, tokens: int = 0
    ) -> None:
        rows.append((label, lambda name: ratios(pick(result, name, workload, phase, tokens)), value))

    for length in lengths:
        row(f"first token after a restart, {length:,} tokens", _first, "restart", "restarted", length)
    if lengths:
        row(f"the same, first request of all, {lengths[-1]:,} tokens", _first_request, "restart", "restarted")
        for length in lengths:
            row(f"saving run: first token, {length:,} tokens", _first, "restart", "saving", length)
        row("saving run: throughput", _throughput, "restart", "saving")
    row("conversations, later turns: first token", _first, "turns", "later turns")
    row("conversations: throughput", _throughput, "turns")
    row("larger than memory, second time: first token", _first, "large", "again")
    row("larger than memory, second time: throughput", _throughput, "large", "again")
    row("mixed: first token", _first, "mixed")
    row("mixed: first token, the worst request", _worst, "mixed")
    takes = 1 + max((s.take for s in result.samples if s.workload == "mixed"), default=0)
    if takes > 1:
        label = f"mixed, the least of {takes} takes: first token"
        rows += [
            (label + more, lambda name: ratios(least(pick(result, name, "mixed"))), value)
            for more, value in (("", _first), (", the worst request", _worst))
        ]
    row("mixed: throughput", _throughput, "mixed")
    row("mixed: share of prompt tokens from a cache", _cached, "mixed")
    lines = [
        [label, *(NOTHING if (r := of(name)) is None else value(r) for name in names)] for label, of, value in rows
    ]
    lines = [line for line in lines if any(line[1:])]
    bursts = [_bursts(burst_throughput(pick(result, name, "bursts"))) for name in names]
    if any(bursts):
        lines.append(["bursts that are saved: throughput, least takes (mean, 95 % of it)", *bursts])
    if not lines:
        return ""
    lines.append(["wrong answers of all requests", *(_wrong(result, name) for name in names)])
    return _table(["÷ no cache", *(result.titles[name] for name in names)], lines)


def _costs(result: Result, names: Sequence[str]) -> str:
    names = [name for name in names if any(s.system == name for s in result.sessions)]
    if not names:
        return ""

    def cells(value: Callable[[list[float]], str], field: str) -> list[str]:
        return [value([getattr(s, field) for s in result.sessions if s.system == name]) for name in names]

    disk = [
        _quotient(
            sum(s.disk_bytes for s in result.sessions if s.system == name),
            sum(s.kv_bytes for s in result.sessions if s.system == name),
        )
        for name in names
    ]
    lines = [
        [
            "daemon's memory, the highest, MiB",
            *cells(lambda v: f"{max(v) / 2**20:.0f}" if max(v) else "none", "daemon_peak_bytes"),
        ],
        [
            "daemon's processor time of a round, s",
            *cells(lambda v: f"{sum(v) / len(v):.1f}" if max(v) else "none", "daemon_cpu_s"),
        ],
        ["bytes on disk ÷ KV of the prompts", *disk],
    ]
    return _table(["costs", *(result.titles[name] for name in names)], lines)


def _damage(result: Result, names: Sequence[str]) -> str:
    names = [name for name in names if any(h.system == name for h in result.harms)]
    if not names:
        return ""
    found = {(h.system, h.case): h for h in result.harms}
    daemons = {h.system for h in result.harms if h.case not in ON_DISK}
    lines = []
    for case in CASES:
        if any((name, case) in found for name in names):
            missing = {name: "not run" if case in ON_DISK or name in daemons else "no daemon" for name in names}
            lines.append(
                [case, *(_harm(found[name, case]) if (name, case) in found else missing[name] for name in names)]
            )
    return _table(["damage", *(result.titles[name] for name in names)], lines)


def _harm(harm: Harm) -> str:
    parts = [f"{harm.wrong} of {harm.requests} wrong"]
    if not harm.hits:
        parts.append("nothing from the cache")
    if harm.unanswered:
        parts.append(f"{harm.unanswered} unanswered")
    parts.append(f"{harm.lost_s:.1f} s lost")
    if harm.first_ratio:
        parts.append(f"first token {harm.first_ratio:.2f} of cold")
    if not harm.alive:
        parts.append("**engine dead**")
    return ", ".join(parts)


def _first(r: Ratios) -> str:
    return _number(r.first)


def _first_request(r: Ratios) -> str:
    return _number(r.first_request)


def _worst(r: Ratios) -> str:
    return _number(r.worst)


def _bursts(t: Throughput | None) -> str:
    return NOTHING if t is None else f"{t.least:.2f} ({t.mean:.2f}, {t.low:.2f} to {t.high:.2f})"


def _throughput(r: Ratios) -> str:
    return f"{r.throughput:.2f}"


def _cached(r: Ratios) -> str:
    return f"{r.cached:.2f}"


def _number(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"


def _wrong(result: Result, name: str) -> str:
    samples = [s for s in result.samples if s.system == name]
    return f"{sum(not s.right for s in samples)} of {len(samples)}"


def _quotient(above: float, below: float) -> str:
    return f"{above / below:.2f}" if above and below else "none"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
