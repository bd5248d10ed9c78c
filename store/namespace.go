package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// maxNamespaces is what the index has room to number.
const maxNamespaces = 1 << 16

// namespaces are the namespaces a store has seen. Their manifests are files, so that
// they outlive the journal; the journal has their numbers.
type namespaces struct {
	// opening is held while one is registered, mu never across I/O.
	opening sync.Mutex

	mu     sync.RWMutex
	byID   []namespace
	lookup map[connector.NamespaceDigest]NamespaceID
}

type namespace struct {
	digest   connector.NamespaceDigest
	manifest []byte // canonical JSON, nil if its file is lost
	scheme   format.KeyScheme
	// sizes is the payload size of each shard that has been seen; noted are those the
	// journal has.
	sizes map[connector.Shard]int
	noted map[connector.Shard]bool
}

// NamespaceInfo describes a namespace of a store.
type NamespaceInfo struct {
	ID     NamespaceID               `json:"id"`
	Digest connector.NamespaceDigest `json:"-"`
	// Manifest is the canonical JSON, or nil if it was lost with its file.
	Manifest []byte `json:"-"`
}

// OpenNamespace returns the number of the namespace that m describes, registering it if
// it is new. It is idempotent; another manifest is another namespace.
func (s *Store) OpenNamespace(m *connector.Manifest) (NamespaceID, error) {
	text, err := m.Canonical()
	if err != nil {
		return 0, err
	}
	digest, err := m.Digest()
	if err != nil {
		return 0, err
	}
	n := &s.namespaces
	// Openers wait for each other and for the disk; look-ups wait for neither.
	n.opening.Lock()
	defer n.opening.Unlock()
	id, state := n.look(digest)
	switch state {
	case namespaceKnown:
		return id, nil
	case namespaceFull:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, ErrInvalid)
	}
	// The manifest is durable before the first record of the namespace can be.
	if err := s.claimManifest(len(text)); err != nil {
		return 0, fmt.Errorf("keep manifest of namespace %v: %w", digest, err)
	}
	path := filepath.Join(s.opts.Dir, namespaceDir, digest.String()+manifestExt)
	if err := s.opts.fs.WriteFileAtomic(path, text); err != nil {
		s.unclaimManifest(len(text))
		return 0, fmt.Errorf("keep manifest of namespace %v: %w: %w", digest, ErrIO, err)
	}
	if state == namespaceNew {
		if err := s.journal.PutNamespace(journal.Namespace{ID: uint16(id), Digest: digest}); err != nil {
			return 0, fmt.Errorf("register namespace %v: %w: %w", digest, ErrIO, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if state == namespaceNew {
		return n.add(digest, text)
	}
	n.byID[id].manifest, n.byID[id].scheme = text, schemeOf(text)
	return id, nil
}

// namespaceState is what is known of a digest.
type namespaceState uint8

const (
	namespaceNew   namespaceState = iota
	namespaceKnown                // with its manifest
	namespaceBare                 // its manifest is lost
	namespaceFull                 // new, and there is no number left
)

// look returns the number of a digest, or the one that it will have.
func (n *namespaces) look(digest connector.NamespaceDigest) (NamespaceID, namespaceState) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, known := n.lookup[digest]
	switch {
	case known && n.byID[id].manifest != nil:
		return id, namespaceKnown
	case known:
		return id, namespaceBare
	case len(n.byID) >= maxNamespaces:
		return 0, namespaceFull
	}
	return NamespaceID(len(n.byID)), namespaceNew
}

// Namespaces lists the namespaces of the store.
func (s *Store) Namespaces() []NamespaceInfo {
	n := &s.namespaces
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]NamespaceInfo, len(n.byID))
	for i, e := range n.byID {
		out[i] = NamespaceInfo{ID: NamespaceID(i), Digest: e.digest, Manifest: slices.Clone(e.manifest)}
	}
	return out
}

// add appends a namespace. n.mu is held.
func (n *namespaces) add(digest connector.NamespaceDigest, manifest []byte) (NamespaceID, error) {
	if len(n.byID) >= maxNamespaces {
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, ErrInvalid)
	}
	id := NamespaceID(len(n.byID))
	n.byID = append(n.byID, namespace{digest: digest, manifest: manifest, scheme: schemeOf(manifest), sizes: make(map[connector.Shard]int), noted: make(map[connector.Shard]bool)})
	n.lookup[digest] = id
	return id, nil
}

// find returns the number of a digest, adding the namespace if it is not known.
func (n *namespaces) find(digest connector.NamespaceDigest) (NamespaceID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.lookup[digest]; ok {
		return id, nil
	}
	return n.add(digest, nil)
}

func (n *namespaces) known(id NamespaceID) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return int(id) < len(n.byID)
}

func (n *namespaces) count() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.byID)
}

// schemeOf is the key scheme that a manifest names.
func schemeOf(manifest []byte) format.KeyScheme {
	var m struct {
		KeyScheme string `json:"key_scheme"`
	}
	if json.Unmarshal(manifest, &m) != nil {
		return format.KeySchemeUnknown
	}
	return format.KeySchemeOf(m.KeyScheme)
}

// identity returns what the headers of a known namespace's records say of it.
func (n *namespaces) identity(id NamespaceID) (connector.NamespaceDigest, format.KeyScheme) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byID[id].digest, n.byID[id].scheme
}

// digest returns the digest of a namespace that is known.
func (n *namespaces) digest(id NamespaceID) connector.NamespaceDigest {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byID[id].digest
}

// checkSize reports whether the shard's payloads have that size. The first one fixes it.
func (n *namespaces) checkSize(id RecordID, payloadBytes int) error {
	n.mu.RLock()
	var want int
	known := int(id.Namespace) < len(n.byID)
	if known {
		want = n.byID[id.Namespace].sizes[id.Shard]
	}
	n.mu.RUnlock()
	switch {
	case !known:
		return fmt.Errorf("namespace %d is not open: %w", id.Namespace, ErrInvalid)
	case want == payloadBytes:
		return nil
	case want != 0:
		return fmt.Errorf("payload of %d bytes: shard %d of namespace %d has payloads of %d: %w",
			payloadBytes, id.Shard, id.Namespace, want, ErrInvalid)
	}
	n.noteSize(id, payloadBytes)
	return n.checkSize(id, payloadBytes)
}

// noteSize fixes the payload size of a shard if it is not fixed.
func (n *namespaces) noteSize(id RecordID, payloadBytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if sizes := n.byID[id.Namespace].sizes; sizes[id.Shard] == 0 {
		sizes[id.Shard] = payloadBytes
	}
}

// unnoted reports whether the journal does not have the payload size of a shard yet, and
// takes it that it has from now on.
func (n *namespaces) unnoted(id RecordID) bool {
	n.mu.RLock()
	noted := n.byID[id.Namespace].noted[id.Shard]
	n.mu.RUnlock()
	if noted {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[id.Namespace].noted[id.Shard] = true
	return true
}

// load reads the namespaces' numbers from the journal and their manifests from files.
func (s *Store) loadNamespaces() error {
	n := &s.namespaces
	n.lookup = make(map[connector.NamespaceDigest]NamespaceID)
	noted, err := s.journal.Namespaces()
	if err != nil {
		return err
	}
	slices.SortFunc(noted, func(a, b journal.Namespace) int { return int(a.ID) - int(b.ID) })
	for _, e := range noted {
		// A gap cannot be: numbers are given one after the other.
		for len(n.byID) < int(e.ID) {
			var hole connector.NamespaceDigest
			binary.LittleEndian.PutUint64(hole[:], uint64(len(n.byID))+1)
			if _, err := n.add(hole, nil); err != nil {
				return err
			}
		}
		text, err := s.opts.fs.ReadFile(filepath.Join(s.opts.Dir, namespaceDir, e.Digest.String()+manifestExt))
		if err != nil {
			s.warn(fmt.Errorf("manifest of namespace %v is lost: %w", e.Digest, err))
			text = nil
		}
		if _, err := n.add(e.Digest, text); err != nil {
			return err
		}
	}
	return s.journal.Sizes(func(id uint16, shard connector.Shard, bytes uint32) {
		if int(id) < len(n.byID) {
			n.byID[id].sizes[shard], n.byID[id].noted[shard] = int(bytes), true
		}
	})
}
