package replay

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// svg writes the shapes that a plot needs.
type svg struct{ b bytes.Buffer }

// anchor says on which side of its point a text is.
type anchor string

const (
	anchorStart  anchor = "start"
	anchorMiddle anchor = "middle"
	anchorEnd    anchor = "end"
)

// style is how a line is drawn.
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

func (s *svg) end() []byte {
	s.b.WriteString("</svg>\n")
	return s.b.Bytes()
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
