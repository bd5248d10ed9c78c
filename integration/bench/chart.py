"""The result as one picture: bars of the time to first token after a restart. Nothing here runs anything."""

from __future__ import annotations

from xml.sax.saxutils import escape

from results import Result, pick, ratios

LEFT, WIDTH, BAR, GAP, TOP, BOTTOM = 190, 480, 16, 14, 44, 34
COLOURS = ("#8fb3d9", "#1f5fa8", "#123a66")
INK, LINE = "#222222", "#bbbbbb"


def svg(result: Result) -> str:
    """Return the picture: a group of bars for each system, a bar for each length; shorter is better."""
    lengths = sorted({s.tokens for s in result.samples if s.workload == "restart"})
    names = [
        name for name in result.titles if name not in result.not_run and pick(result, name, "restart", "restarted")
    ]
    values = {
        (name, length): found.first
        for name in names
        for length in lengths
        if (found := ratios(pick(result, name, "restart", "restarted", length))) is not None
    }
    end = max(1.0, *values.values()) if values else 1.0
    group = BAR * len(lengths) + GAP
    height = TOP + group * len(names) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(LEFT, 18, "Time to first token after a restart ÷ no cache (shorter is better)", weight="bold"),
    ]
    for i, length in enumerate(lengths):
        x = LEFT + i * 120
        parts.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(_text(x + 15, 35, f"{length:,} tokens"))
    parts += _axis(end, height)
    for row, name in enumerate(names):
        y = TOP + row * group
        parts.append(_text(LEFT - 8, y + group // 2, result.titles[name].replace("`", ""), anchor="end"))
        for i, length in enumerate(lengths):
            if (value := values.get((name, length))) is None:
                continue
            width, top = value / end * WIDTH, y + i * BAR
            fill = COLOURS[i % len(COLOURS)]
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 2}" fill="{fill}"/>')
            parts.append(_text(LEFT + width + 4, top + BAR - 5, f"{value:.3f}" if value < 0.1 else f"{value:.2f}"))
    parts.append(_text(LEFT, height - 4, f"{result.date}, {result.machine['cores']} cores, no GPU, float32", size=10))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(end: float, height: int) -> list[str]:
    parts = []
    for tenth in range(0, int(end * 10) + 1, 2):
        x = LEFT + tenth / 10 / end * WIDTH
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - BOTTOM}" stroke="{LINE}"/>')
        parts.append(_text(x, height - BOTTOM + 14, f"{tenth / 10:g}", anchor="middle", size=10))
    return parts


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" '
        f'fill="{INK}">{escape(words)}</text>'
    )
