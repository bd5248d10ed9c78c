package replay

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// Plot writes the report as an SVG drawing: the capacity curve, and the distribution of times to first
// token by policy.
func (r *Report) Plot(out io.Writer) error {
	s := newSVG(1120, 470)
	r.curvePanel().draw(s)
	if p := r.ttftPanel(); p != nil {
		p.draw(s)
	}
	s.b.WriteString("</svg>\n")
	if _, err := s.b.WriteTo(out); err != nil {
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

type point struct{ x, y float64 }

type series struct {
	name   string
	points []point
	style  style
}

// panel is a plot with a logarithmic axis below and a linear one from 0 at the left.
type panel struct {
	title, xLabel, yLabel    string
	left, top, width, height float64
	xMin, xMax, yMax         float64
	xTick                    func(v float64) []string // lines of text
	series                   []series
	legendTop                float64 // the legend is at the left below it; 0: at the lower right
}

// palette returns the i-th line style: the colours of Okabe and Ito, which people with colour blindness
// can tell apart, dashed from the second round on.
func palette(i int) style {
	colors := [...]string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"}
	dashes := [...]string{"", "7 3", "2 3"}
	return style{color: colors[i%len(colors)], dash: dashes[i/len(colors)%len(dashes)], width: 2}
}

func (p *panel) x(v float64) float64 {
	part := (math.Log(v) - math.Log(p.xMin)) / (math.Log(p.xMax) - math.Log(p.xMin))
	return p.left + p.width*min(max(part, 0), 1)
}

func (p *panel) y(v float64) float64 { return p.top + p.height*(1-min(max(v/p.yMax, 0), 1)) }

func (p *panel) draw(s *svg) {
	p.drawAxes(s)
	p.drawLegend(s) // under the lines, in case one of them has to cross it
	for _, line := range p.series {
		at := make([]point, len(line.points))
		for i, v := range line.points {
			at[i] = point{p.x(v.x), p.y(v.y)}
		}
		s.polyline(at, line.style)
	}
}

func (p *panel) drawAxes(s *svg) {
	grid, minor := style{color: "#d8d8d8", width: 1}, style{color: "#f0f0f0", width: 1}
	for power := math.Floor(math.Log10(p.xMin)); power <= math.Ceil(math.Log10(p.xMax)); power++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, power)
			if v < p.xMin*(1-1e-9) || v > p.xMax*(1+1e-9) {
				continue
			}
			if m > 1 {
				s.line(p.x(v), p.top, p.x(v), p.top+p.height, minor)
				continue
			}
			s.line(p.x(v), p.top, p.x(v), p.top+p.height, grid)
			for i, text := range p.xTick(v) {
				s.text(p.x(v), p.top+p.height+16+14*float64(i), anchorMiddle, "", text)
			}
		}
	}
	step := tickStep(p.yMax)
	for i := 0; float64(i)*step <= p.yMax*(1+1e-9); i++ {
		v := float64(i) * step
		s.line(p.left, p.y(v), p.left+p.width, p.y(v), grid)
		s.text(p.left-6, p.y(v)+4, anchorEnd, "", fmt.Sprintf("%g%%", math.Round(1000*v)/10))
	}
	s.rect(p.left, p.top, p.width, p.height, "none", style{color: "#444444", width: 1})
	s.text(p.left+p.width/2, p.top-12, anchorMiddle, ` font-size="14" font-weight="bold"`, p.title)
	s.text(p.left+p.width/2, p.top+p.height+48, anchorMiddle, "", p.xLabel)
	x, y := p.left-48, p.top+p.height/2
	s.text(x, y, anchorMiddle, fmt.Sprintf(` transform="rotate(-90 %.1f %.1f)"`, x, y), p.yLabel)
}

// tickStep returns a round step that makes at most eight ticks.
func tickStep(most float64) float64 {
	for step := 0.001; ; step *= 10 {
		for _, m := range [...]float64{1, 2, 5} {
			if most/(m*step) <= 8 {
				return m * step
			}
		}
	}
}

// drawLegend names the series, in a place that rising lines leave free.
func (p *panel) drawLegend(s *svg) {
	const row, sample, glyph, pad = 17.0, 30.0, 6.6, 8.0
	longest := 0
	for _, line := range p.series {
		longest = max(longest, len(line.name))
	}
	width, height := sample+3*pad+glyph*float64(longest), row*float64(len(p.series))+pad
	x, y := p.left+p.width-width-pad, p.top+p.height-height-pad
	if p.legendTop > 0 { // as low as it fits
		x, y = p.left+pad, min(p.legendTop+pad, y)
	}
	s.rect(x, y, width, height, "#ffffff", style{color: "#bbbbbb", width: 1})
	for i, line := range p.series {
		at := y + pad + row*(float64(i)+0.4)
		s.line(x+pad, at, x+pad+sample, at, line.style)
		s.text(x+2*pad+sample, at+4, anchorStart, "", line.name)
	}
}

type svg struct{ b bytes.Buffer }

// anchor says on which side of its point a text is.
type anchor string

const (
	anchorStart  anchor = "start"
	anchorMiddle anchor = "middle"
	anchorEnd    anchor = "end"
)

type style struct {
	color string
	dash  string
	width float64
}

func newSVG(width, height float64) *svg {
	s := new(svg)
	fmt.Fprintf(&s.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g" font-family="Helvetica, Arial, sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&s.b, `<rect width="%g" height="%g" fill="#ffffff"/>`+"\n", width, height)
	return s
}

func (s *svg) line(x1, y1, x2, y2 float64, st style) {
	fmt.Fprintf(&s.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, st.attributes())
}

func (s *svg) rect(x, y, width, height float64, fill string, st style) {
	fmt.Fprintf(&s.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" %s/>`+"\n", x, y, width, height, fill, st.attributes())
}

func (s *svg) polyline(points []point, st style) {
	var at strings.Builder
	for _, p := range points {
		fmt.Fprintf(&at, "%.1f,%.1f ", p.x, p.y)
	}
	fmt.Fprintf(&s.b, `<polyline points="%s" fill="none" stroke-linejoin="round" %s/>`+"\n", strings.TrimSpace(at.String()), st.attributes())
}

func (s *svg) text(x, y float64, at anchor, extra, text string) {
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222"%s>`, x, y, at, extra)
	_ = xml.EscapeText(&s.b, []byte(text)) // a buffer takes everything
	s.b.WriteString("</text>\n")
}

func (st style) attributes() string {
	a := fmt.Sprintf(`stroke="%s" stroke-width="%g"`, st.color, st.width)
	if st.dash != "" {
		a += fmt.Sprintf(` stroke-dasharray="%s"`, st.dash)
	}
	return a
}
