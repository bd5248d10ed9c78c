package model

import "math"

// The kernels below add up one output in one accumulator, from the first input to the
// last, and round each product to float32 before it is added (the conversion forbids the
// compiler to fuse the two on machines that could). So an output has the same bits
// whichever kernel computed it. Speed comes from the several accumulators of a kernel,
// which do not wait for one another, and from using every loaded number more than once.
// The race detector leaves the arithmetic in this file alone, as it would slow it down
// thirty times; it still sees the callers, which decide who works on what.

// dot2x3 adds the products of two rows a with three rows b to the same of c. All have
// len(a0) elements. Six accumulators are what the processor's registers hold beside the
// inputs: with eight the compiler spills, at less than half the speed.
//
//go:norace
func dot2x3(a0, a1, b0, b1, b2 []float32, c0, c1 *[3]float32) {
	n := len(a0)
	a1, b0, b1, b2 = a1[:n], b0[:n], b1[:n], b2[:n]
	c00, c01, c02 := c0[0], c0[1], c0[2]
	c10, c11, c12 := c1[0], c1[1], c1[2]
	for k := range b0 {
		x, y := a0[k], a1[k]
		c00 += float32(b0[k] * x)
		c10 += float32(b0[k] * y)
		c01 += float32(b1[k] * x)
		c11 += float32(b1[k] * y)
		c02 += float32(b2[k] * x)
		c12 += float32(b2[k] * y)
	}
	c0[0], c0[1], c0[2] = c00, c01, c02
	c1[0], c1[1], c1[2] = c10, c11, c12
}

// dot1x4 adds the products of one row a with four rows b to c.
//
//go:norace
func dot1x4(a, b0, b1, b2, b3 []float32, c *[4]float32) {
	n := len(a)
	b0, b1, b2, b3 = b0[:n], b1[:n], b2[:n], b3[:n]
	c0, c1, c2, c3 := c[0], c[1], c[2], c[3]
	for k, x := range a {
		c0 += float32(x * b0[k])
		c1 += float32(x * b1[k])
		c2 += float32(x * b2[k])
		c3 += float32(x * b3[k])
	}
	c[0], c[1], c[2], c[3] = c0, c1, c2, c3
}

// dot returns c plus the product of two rows.
//
//go:norace
func dot(a, b []float32, c float32) float32 {
	b = b[:len(a)]
	for k, x := range a {
		c += float32(x * b[k])
	}
	return c
}

// matrix holds rows of width numbers, each row stride numbers after the one before.
// Output o of a product is the dot product with row o.
type matrix struct {
	rows, width, stride int
	data                []float32
}

func (m *matrix) row(i int) []float32 {
	return m.data[i*m.stride : i*m.stride+m.width : i*m.stride+m.width]
}

// times writes the product with n rows of in to out, whose rows are m.rows wide.
func (m *matrix) times(out, in []float32, n int) {
	clear(out[:n*m.rows])
	m.plus(out, in, n)
}

// plus adds the product with n rows of in to out. Adding up a long row in several calls
// gives the same bits as in one.
func (m *matrix) plus(out, in []float32, n int) {
	w, r := m.width, m.rows
	paired, whole := n&^1, r/3*3
	if paired == 0 {
		whole = 0
	}
	// Outputs are the outer loop: three rows stay in the first-level cache while all
	// rows of the tile pass.
	for o := 0; o < whole; o += 3 {
		b0, b1, b2 := m.row(o), m.row(o+1), m.row(o+2)
		for i := 0; i < paired; i += 2 {
			dot2x3(in[i*w:(i+1)*w], in[(i+1)*w:(i+2)*w], b0, b1, b2,
				(*[3]float32)(out[i*r+o:]), (*[3]float32)(out[(i+1)*r+o:]))
		}
	}
	for i := range n {
		from := 0
		if i < paired {
			from = whole
		}
		m.plusRow(out[i*r:(i+1)*r], in[i*w:(i+1)*w], from)
	}
}

// plusRow adds the outputs of one row from the given one on.
func (m *matrix) plusRow(out, in []float32, from int) {
	o := from
	for ; o+4 <= m.rows; o += 4 {
		dot1x4(in, m.row(o), m.row(o+1), m.row(o+2), m.row(o+3), (*[4]float32)(out[o:]))
	}
	for ; o < m.rows; o++ {
		out[o] = dot(in, m.row(o), out[o])
	}
}

// rmsNorm writes in, scaled to the root mean square gain, to out.
//
//go:norace
func rmsNorm(out, in []float32, gain float32) {
	const epsilon = 1e-6
	mean := dot(in, in, 0) / float32(len(in))
	scale := gain / float32(math.Sqrt(float64(mean+epsilon)))
	out = out[:len(in)]
	for i, x := range in {
		out[i] = x * scale
	}
}

// exp is e to the x to within a few units of the last place; below -87 it is 0 and above
// 88 it stays finite. It is here because math.Exp is several times slower and may differ
// between processor families.
//
//go:norace
func exp(x float32) float32 {
	const (
		log2e = 1.44269504
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
	)
	if x < -87 {
		return 0
	}
	x = min(x, 88)
	t := x * log2e
	n := int32(t + 0.5)
	if t < 0 {
		n = int32(t - 0.5)
	}
	f := float32(n)
	r := x - float32(f*ln2Hi)
	r -= float32(f * ln2Lo)
	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(float32(p*r)*r) + r + 1
	return p * math.Float32frombits(uint32(n+127)<<23)
}
