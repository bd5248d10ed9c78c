// Package manifests has the namespace that tests and benches use where its form does not matter.
package manifests

import "github.com/kvconn/kvconn/connector"

// New returns the manifest of a small model: two layers of one group on one rank, 16 tokens and
// 2 KiB a block. Each change is applied to it.
func New(change ...func(*connector.Manifest)) *connector.Manifest {
	m := &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16,
		Groups:         []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 8, Layout: "LBHNC"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
	for _, f := range change {
		f(m)
	}
	return m
}

// Model returns [New] with a model's name.
func Model(name string) *connector.Manifest {
	return New(func(m *connector.Manifest) { m.Model = name })
}
