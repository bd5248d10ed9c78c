package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"

	"github.com/zeebo/xxh3"
)

// Model holds the weights. It is not safe for concurrent use: a forward pass uses
// scratch memory of the model.
type Model struct {
	config    Config
	embedding matrix
	layers    []layer
	output    matrix
	// cos and sin hold the rotation of each position, HeadDim/2 numbers a position.
	cos, sin []float32
	// group is each layer's layer group.
	group   []int
	scratch scratch
}

// layer holds one layer's weights. Matrices with the same input are one matrix.
type layer struct {
	qkv, attnOut matrix
	gateUp, down matrix
}

// Gains of the signals. They decide how the model answers to wrong KV and were chosen by
// trying (changed tokens of prompts, exchanged blocks, 200 to 1,500 tokens): sharp enough
// attention that a difference grows from layer to layer, which soft attention averages
// away, and a strong part beside the residual stream. With these, changing one token of a
// prompt turns the logits by 0.7 of their length, with scoreGain 1 by 0.15.
const (
	scoreGain     = 9
	attentionGain = 3
	feedGain      = 1
)

// New draws the weights of a model. It panics if the shape is not valid, see
// [Config.Validate].
func New(c Config) *Model {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	r := rand.New(rand.NewPCG(c.Seed, 0x6b76636f6e6e))
	m := &Model{config: c}
	m.embedding = draw(r, c.Vocab, c.Dim)
	m.layers = make([]layer, c.Layers)
	for i := range m.layers {
		m.layers[i] = layer{
			qkv:     draw(r, (c.Heads+2*c.KVHeads)*c.HeadDim, c.Dim),
			attnOut: draw(r, c.Dim, c.Heads*c.HeadDim),
			gateUp:  draw(r, 2*c.Hidden, c.Dim),
			down:    draw(r, c.Dim, c.Hidden),
		}
	}
	m.output = draw(r, c.Vocab, c.Dim)
	m.rotations()
	m.group = make([]int, c.Layers)
	for g, group := range c.Groups() {
		for _, layer := range group.Layers {
			m.group[layer] = g
		}
	}
	return m
}

// Streams of random numbers for what seeds of the caller stand for.
const (
	adapterStream = 1
	contentStream = 2
)

// drawn returns the vector that a seed stands for, on the scale of the embeddings.
func drawn(seed, stream uint64, n int) []float32 {
	return draw(rand.New(rand.NewPCG(seed, stream)), 1, n).data
}

// draw makes a matrix of normal numbers, scaled so that a product with an input of mean
// square one has mean square one.
func draw(r *rand.Rand, rows, width int) matrix {
	m := matrix{rows: rows, width: width, stride: width, data: make([]float32, rows*width)}
	scale := 1 / math.Sqrt(float64(width))
	for i := range m.data {
		m.data[i] = float32(r.NormFloat64() * scale)
	}
	return m
}

func (m *Model) rotations() {
	half := m.config.HeadDim / 2
	m.cos = make([]float32, m.config.MaxContext*half)
	m.sin = make([]float32, m.config.MaxContext*half)
	for pos := range m.config.MaxContext {
		for i := range half {
			angle := float64(pos) * math.Pow(10000, -float64(i)/float64(half))
			m.cos[pos*half+i] = float32(math.Cos(angle))
			m.sin[pos*half+i] = float32(math.Sin(angle))
		}
	}
}

// Config returns the shape.
func (m *Model) Config() Config { return m.config }

// Fingerprint names the weights and the arithmetic: models of equal fingerprint fill a KV
// cache with equal bytes.
func (m *Model) Fingerprint() string {
	h := xxh3.New()
	add := func(matrices ...matrix) {
		for _, w := range matrices {
			buf := make([]byte, 0, 4*len(w.data))
			for _, x := range w.data {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
			}
			_, _ = h.Write(buf)
		}
	}
	add(m.embedding)
	for layer := range m.layers {
		_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, uint32(m.config.Window(layer))))
	}
	for _, l := range m.layers {
		add(l.qkv, l.attnOut, l.gateUp, l.down)
	}
	return fmt.Sprintf("%016x-%s", h.Sum64(), runtime.GOARCH)
}
