package disk

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

func (s *Store) manifestPath(digest connector.NamespaceDigest) string {
	return filepath.Join(s.opts.Dir, namespaceDir, digest.String()+manifestExt)
}

var errNotOpen = fmt.Errorf("namespace is not open: %w", store.ErrInvalid)

// keepManifest makes the manifest of a namespace a file, durably, before the first of its
// records is written. Writers of the namespace wait for each other, others for none.
func (s *Store) keepManifest(id uint16) error {
	n := &s.namespaces
	for {
		n.mu.RLock()
		e := n.at(id)
		kept := e != nil && (e.kept || e.manifest == nil)
		n.mu.RUnlock()
		switch {
		case e == nil:
			return fmt.Errorf("namespace %d: %w", id, errNotOpen)
		case kept:
			return nil
		}
		n.mu.Lock()
		other := n.keeping[id]
		if other == nil && n.byID[id] == e && !e.kept && !e.gone {
			n.keeping[id] = make(chan struct{})
			n.mu.Unlock()
			return s.writeManifest(id, e)
		}
		n.mu.Unlock()
		if other != nil {
			<-other
		}
	}
}

// writeManifest is keepManifest for the one that n.keeping is of.
func (s *Store) writeManifest(id uint16, e *namespace) error {
	n := &s.namespaces
	err := s.claimManifest(len(e.manifest)) // before it is there, so that no moment sees more than is counted
	full := err != nil
	if !full {
		if err = s.opts.fs.WriteFileAtomic(s.manifestPath(e.digest), e.manifest); err != nil {
			s.unclaimManifest(len(e.manifest))
			err = fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.kept = err == nil; full {
		n.requestTidy()
	}
	close(n.keeping[id])
	delete(n.keeping, id)
	if err != nil {
		return fmt.Errorf("keep manifest of namespace %v: %w", e.digest, err)
	}
	return nil
}

// readManifest returns the manifest of a namespace from its file. What is not that is put
// out of the way of the next one that is written.
func (s *Store) readManifest(digest connector.NamespaceDigest) ([]byte, error) {
	path := s.manifestPath(digest)
	text, err := s.opts.fs.ReadFile(path)
	switch {
	case fsio.IsNotExist(err):
		return nil, err
	case err != nil:
		if fsio.IsDir(s.opts.fs, path) {
			s.setAside(path)
		}
		return nil, err
	case sha256.Sum256(text) != digest:
		return nil, errors.New("it does not match its digest")
	}
	return text, nil
}

// loadManifest reads the manifest of a namespace from its file. The store is not open yet.
func (s *Store) loadManifest(e *namespace) error {
	text, err := s.readManifest(e.digest)
	if err != nil {
		return err
	}
	e.manifest, e.scheme, e.kept = text, schemeOf(text), true
	return nil
}

// dropManifests removes the manifest files of namespaces that are not known: of those that
// were forgotten in a moment of a crash.
func (s *Store) dropManifests() {
	n := &s.namespaces
	dir := filepath.Join(s.opts.Dir, namespaceDir)
	entries, err := s.opts.fs.ReadDir(dir)
	if err != nil {
		return
	}
	known := make(map[string]bool)
	n.mu.RLock()
	for digest := range n.lookup {
		known[digest.String()] = true
	}
	n.mu.RUnlock()
	for _, e := range entries {
		if digest, _, _ := strings.Cut(e.Name(), "."); !known[digest] {
			if err := s.opts.fs.Remove(filepath.Join(dir, e.Name())); err != nil {
				s.opts.Logger.Warn("store: cannot remove the manifest of a namespace without records", "err", err,
					"remedy", "none: it is tried again at the next start")
			}
		}
	}
}

const (
	// manifestsPart of the cap is the most that manifests may take.
	manifestsPart = 8
	// dirEntryBytes bounds what a name adds to its directory.
	dirEntryBytes = 128
)

// claimManifest takes room for a manifest that is about to be written. Segments are given
// up for it where the cap leaves none, which takes a barrier or two.
func (s *Store) claimManifest(bytes int) error {
	need := int64(fsio.AlignUp(bytes) + dirEntryBytes)
	p := s.space
	p.mu.Lock()
	refused := p.smallB+need > p.maxBytes/manifestsPart
	if !refused {
		p.smallB += need
	}
	p.mu.Unlock()
	if refused {
		return fmt.Errorf("manifests take more than a %dth of the cap of %d bytes: %w", manifestsPart, p.maxBytes, store.ErrTooLarge)
	}
	for end := time.Now().Add(s.opts.SlotWait); p.over() > 0; time.Sleep(stuckInterval) {
		if time.Now().After(end) {
			s.unclaimManifest(bytes)
			return fmt.Errorf("no segment was given up within %v for a manifest: %w", s.opts.SlotWait, store.ErrBusy)
		}
		s.wakeShrinker()
	}
	return nil
}

func (s *Store) unclaimManifest(bytes int) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.smallB -= int64(fsio.AlignUp(bytes) + dirEntryBytes)
}
