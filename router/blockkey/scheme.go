package blockkey

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/connector"
)

// Scheme says how the keys of a model's blocks are made.
type Scheme uint8

const (
	// Tokens are kvconn's own keys, see [connector.NextKey].
	Tokens Scheme = iota
	// SGLang keys are the first 128 bits of SGLang's page hashes: SHA-256 of the hash of the page before and the page's
	// tokens, 4 bytes each, little endian. Before a prompt's first page there is nothing, or the seed of its salt.
	SGLang
)

// String is the scheme's name, for messages.
func (s Scheme) String() string {
	if s == SGLang {
		return "sglang"
	}
	return "tokens"
}

var (
	// ErrScheme says that a namespace has keys of another scheme.
	ErrScheme = errors.New("keys of another scheme")
	// ErrPairs says that SGLang's hashes cover pairs of tokens, as with some kinds of speculative decoding. They are not
	// computed.
	ErrPairs = errors.New("SGLang's hashes cover pairs of tokens")
)

// Check reports why prompts' keys of this scheme are not those of a store's namespace, nil if they are. Errors wrap
// [ErrScheme] or [ErrPairs].
func (s Scheme) Check(m *connector.Manifest) error {
	want := connector.KeySchemeTokens
	if s == SGLang {
		want = connector.KeySchemeEngine
	}
	if m.KeyScheme != want || s == SGLang && !strings.HasPrefix(m.Engine, "sglang/") {
		return fmt.Errorf("%w: %s of %s, want %s", ErrScheme, m.KeyScheme, m.Engine, s)
	}
	if s == SGLang {
		switch by := m.Extra["args.speculative_algorithm"]; strings.ToUpper(by) {
		case "EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP":
			return fmt.Errorf("%w: speculative decoding with %s", ErrPairs, by)
		}
	}
	return nil
}

// Root is where the prompts of a scope begin.
func (s Scheme) Root(blockSize int, scope connector.Scope) Link {
	if s == Tokens {
		return keyLink(connector.RootKey(blockSize, scope))
	}
	l := Link{scheme: SGLang}
	switch {
	case scope.LoRA != "":
		// SGLang mixes in an id of the adapter that only the engine knows, so no store has blocks under these keys.
		l.size = uint8(copy(l.hash[:], seed("kvconn/router/sglang-adapter/1", scope.LoRA, scope.Salt)))
	case scope.Salt != "":
		l.size = uint8(copy(l.hash[:], seed("sglang-cache-namespace-v1", "", scope.Salt)))
	}
	return l
}

// StoreRoot is what stores give as the parent of the first block of a prompt of the plain scope. SGLang's pages have
// it in every scope.
func (s Scheme) StoreRoot(blockSize int) connector.Key {
	return s.Root(blockSize, connector.Scope{}).Key()
}

// seed is SHA-256 of a tag and two parts: a zero byte for an empty one, for others a byte 1, the length as 64 bits, little
// endian, and the text. It is SGLang's storage_namespace_seed.
func seed(tag string, parts ...string) []byte {
	b := []byte(tag)
	for _, part := range parts {
		if part == "" {
			b = append(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, 1), uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}
