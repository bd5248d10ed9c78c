package replay

import (
	"fmt"
	"io"
	"math"
)

// Plot writes the report as an SVG drawing: the capacity curve, and the distribution of times to first
// token by policy.
func (r *Report) Plot(out io.Writer) error {
	s := newSVG(1120, 470)
	r.curvePanel().draw(s)
	if p := r.ttftPanel(); p != nil {
		p.draw(s)
	}
	if _, err := out.Write(s.end()); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

func (r *Report) curvePanel() *panel {
	p := &panel{
		title: "Hit rate by size of disk", yLabel: "found at the heads of prompts", xLabel: "disk tier: token blocks, and bytes",
		left: 75, top: 40, width: 440, height: 360,
		xMin: float64(r.Curve[0].DiskBlocks), xMax: float64(r.Curve[len(r.Curve)-1].DiskBlocks), yMax: 0.01,
	}
	p.xMax = max(p.xMax, p.xMin*10)
	bytesPerBlock := float64(r.Trace.BlockTokens) * r.Setup.BytesPerToken
	p.xTick = func(v float64) []string {
		return []string{amount(v), bytesText(v * bytesPerBlock)}
	}
	if r.Setup.Nodes == 1 {
		p.add("tokens", r.capacity, palette(0), true)
		p.add("blocks", r.capacity, palette(1), false)
	} else {
		p.xLabel, p.yLabel = "disk tier of each node: token blocks, and bytes", "tokens found at the heads of prompts"
		for i, q := range r.Policies {
			p.add(fmt.Sprintf("%d disks, %s", r.Setup.Nodes, q.Policy), q.capacity, palette(i), true)
		}
		p.add("one disk for all", r.capacity, style{color: "#777777", width: 2.5}, true)
	}
	p.yMax = max(p.yMax, r.InfiniteTokenHits*1.08, r.InfiniteBlockHits*1.08)
	p.legendTop = p.y(r.InfiniteTokenHits)
	dashed := style{color: "#888888", dash: "4 4", width: 1.5}
	p.series = append(p.series, series{name: "infinite disk, tokens", style: dashed,
		points: []point{{p.xMin, r.InfiniteTokenHits}, {p.xMax, r.InfiniteTokenHits}}})
	if n := float64(r.Setup.DiskBlocks); n >= p.xMin && n <= p.xMax {
		dashed.dash = "1 3"
		p.series = append(p.series, series{name: "disk simulated", style: dashed, points: []point{{n, 0}, {n, p.yMax}}})
	}
	return p
}

// plotPoints is the number of points of a line.
const plotPoints = 200

// add adds a capacity curve, of tokens or blocks.
func (p *panel) add(name string, c *Capacity, st style, ofTokens bool) {
	line := series{name: name, style: st}
	for k := range plotPoints + 1 {
		size := p.xMin * math.Pow(p.xMax/p.xMin, float64(k)/plotPoints)
		blocks, tokens := c.At(int(math.Round(size)))
		if ofTokens {
			blocks = tokens
		}
		line.points = append(line.points, point{size, blocks})
	}
	p.series = append(p.series, line)
}

func (r *Report) ttftPanel() *panel {
	p := &panel{
		title: "Estimated time to first token", yLabel: "requests served by then", xLabel: "seconds after arrival",
		left: 650, top: 40, width: 440, height: 360, xMin: math.Inf(1), yMax: 1,
		xTick: func(v float64) []string { return []string{fmt.Sprintf("%g", v)} },
	}
	const floor = 1e-3 // a log axis has no 0
	for i, q := range r.Policies {
		n := len(q.ttft)
		if n == 0 {
			continue
		}
		line := series{name: q.Policy, style: palette(i)}
		for k := range plotPoints + 1 {
			at := k * (n - 1) / plotPoints
			line.points = append(line.points, point{max(q.ttft[at], floor), float64(at+1) / float64(n)})
		}
		p.series = append(p.series, line)
		p.xMin = min(p.xMin, max(q.ttft[n/100], floor))
		p.xMax = max(p.xMax, max(q.ttft[n-1], floor))
	}
	if len(p.series) == 0 {
		return nil
	}
	p.xMax = max(p.xMax, p.xMin*10)
	return p
}
