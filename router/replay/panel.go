package replay

import (
	"fmt"
	"math"
)

// point is a point of a series, or of the page.
type point struct{ x, y float64 }

// series is a line of a panel.
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

// draw draws the panel.
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
