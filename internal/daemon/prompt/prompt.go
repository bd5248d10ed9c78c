// Package prompt is a prompt as people name it to the daemon: by its model, tokens and cache salt.
package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Prompt is a prompt of a model without adapters and images.
type Prompt struct {
	Model string `json:"model"`
	// Tokens are the ids of the prompt's tokens.
	Tokens []uint32 `json:"tokens"`
	// Salt is the cache_salt of the request.
	Salt string `json:"cache_salt,omitempty"`
}

// Keys are the keys of the prompt's whole blocks.
func (p *Prompt) Keys(blockSize int) []connector.Key {
	keys := make([]connector.Key, 0, len(p.Tokens)/blockSize)
	parent := connector.RootKey(blockSize, connector.Scope{Salt: p.Salt})
	var block, scratch []byte
	for tokens := p.Tokens; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		block = connector.AppendTokens(block[:0], tokens[:blockSize])
		parent, scratch = connector.NextKey(parent, block, scratch)
		keys = append(keys, parent)
	}
	return keys
}

// Proofs are the proofs of the prompt's whole blocks in a namespace.
func (p *Prompt) Proofs(ns connector.NamespaceDigest, blockSize int) []connector.Proof {
	proofs := make([]connector.Proof, 0, len(p.Tokens)/blockSize)
	parent := connector.RootProof(ns, blockSize, connector.Scope{Salt: p.Salt})
	var block, scratch []byte
	for tokens := p.Tokens; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		block = connector.AppendTokens(block[:0], tokens[:blockSize])
		parent, scratch = connector.NextProof(parent, block, scratch)
		proofs = append(proofs, parent)
	}
	return proofs
}

// Validate reports why that is no prompt.
func (p *Prompt) Validate() error {
	switch most := min(MaxTokens, connector.MaxTokens); {
	case p.Model == "":
		return errors.New("model is empty")
	case len(p.Tokens) > most:
		return fmt.Errorf("%d tokens: at most %d", len(p.Tokens), most)
	}
	return nil
}

// Manifests returns those of a model's namespaces.
func Manifests(model string, all []store.NamespaceInfo) (list []*connector.Manifest) {
	for _, info := range all {
		if m, err := connector.ParseManifest(info.Manifest); err == nil && m.Model == model {
			list = append(list, m)
		}
	}
	return list
}

const (
	// MaxBodyBytes bounds a request, MaxTokens its prompt.
	MaxBodyBytes = 16 << 20
	MaxTokens    = 1 << 20
	// bodyTimeout bounds the reading of a request.
	bodyTimeout = 10 * time.Second
)

// Decode reads a request of JSON, within bounds of size and time. what says what it should be.
func Decode(w http.ResponseWriter, r *http.Request, what string, q any) error {
	reading := http.NewResponseController(w)
	_ = reading.SetReadDeadline(time.Now().Add(bodyTimeout)) // a recorder of tests has none
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return fmt.Errorf("the request is no JSON of %s: %w", what, err)
	}
	_ = reading.SetReadDeadline(time.Time{}) // its end would end the request
	return nil
}
