package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// findNamespace returns the number of a digest for records found in headers, noting the namespace
// if it is not known.
func (s *Store) findNamespace(digest connector.NamespaceDigest) (NamespaceID, error) {
	n := &s.namespaces
	n.mu.RLock()
	id, ok := n.lookup[digest]
	n.mu.RUnlock()
	if ok {
		return id, nil
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	id, state := n.look(digest)
	switch state {
	case namespaceKnown, namespaceBare:
		return id, nil
	case namespaceFull:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, ErrInvalid)
	}
	if err := s.journal.PutNamespace(journal.Namespace{ID: uint16(id), Digest: digest}); err != nil {
		return 0, fmt.Errorf("register namespace %v: %w: %w", digest, ErrIO, err)
	}
	manifest, _ := s.readManifest(digest)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.add(digest, manifest)
}

// readManifest returns the manifest of a namespace from its file. What is not that is put
// out of the way of the next one that is written.
func (s *Store) readManifest(digest connector.NamespaceDigest) ([]byte, error) {
	path := filepath.Join(s.opts.Dir, namespaceDir, digest.String()+manifestExt)
	text, err := s.opts.fs.ReadFile(path)
	switch {
	case disk.IsNotExist(err):
		return nil, err
	case err != nil:
		if s.isDir(path) {
			s.setAside(path)
		}
		return nil, err
	case sha256.Sum256(text) != digest:
		return nil, errors.New("it does not match its digest")
	}
	return text, nil
}

// reset forgets all namespaces, while the store opens.
func (n *namespaces) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID, n.lookup = nil, nil
}
