package namespace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// manifestExt ends the names of manifests.
const manifestExt = ".json"

func (n *Registry) manifestPath(digest connector.NamespaceDigest) string {
	return filepath.Join(n.o.Dir, digest.String()+manifestExt)
}

// Keep makes the manifest of a namespace a file, durably, before the first of its
// records is written. Writers of the namespace wait for each other, others for none.
func (n *Registry) Keep(id uint16) error {
	for {
		n.mu.RLock()
		e := n.at(id)
		kept := e != nil && (e.kept || e.manifest == nil)
		n.mu.RUnlock()
		switch {
		case e == nil:
			return fmt.Errorf("namespace %d: %w", id, ErrNotOpen)
		case kept:
			return nil
		}
		n.mu.Lock()
		other := n.keeping[id]
		if other == nil && n.byID[id] == e && !e.kept && !e.gone {
			n.keeping[id] = make(chan struct{})
			n.mu.Unlock()
			return n.writeManifest(id, e)
		}
		n.mu.Unlock()
		if other != nil {
			<-other
		}
	}
}

// writeManifest is Keep for the one that n.keeping is of.
func (n *Registry) writeManifest(id uint16, e *namespace) error {
	err := n.o.Claim(len(e.manifest)) // before it is there, so that no moment sees more than is counted
	full := err != nil
	if !full {
		if err = n.o.FS.WriteFileAtomic(n.manifestPath(e.digest), e.manifest); err != nil {
			n.o.Unclaim(len(e.manifest))
			err = fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.kept = err == nil; full {
		n.RequestTidy()
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
func (n *Registry) readManifest(digest connector.NamespaceDigest) ([]byte, error) {
	path := n.manifestPath(digest)
	text, err := n.o.FS.ReadFile(path)
	switch {
	case fsio.IsNotExist(err):
		return nil, err
	case err != nil:
		if fsio.IsDir(n.o.FS, path) {
			if failed := fsio.SetAside(n.o.FS, path); failed != nil {
				n.o.Report.Note("%s cannot be renamed (%v)", filepath.Base(path), failed)
			}
		}
		return nil, err
	case sha256.Sum256(text) != digest:
		return nil, errors.New("it does not match its digest")
	}
	return text, nil
}

// loadManifest reads the manifest of a namespace from its file. The store is not open yet.
func (n *Registry) loadManifest(e *namespace) error {
	text, err := n.readManifest(e.digest)
	if err != nil {
		return err
	}
	e.manifest, e.scheme, e.kept = text, schemeOf(text), true
	return nil
}

// DropManifests removes the manifest files of namespaces that are not known: of those that
// were forgotten in a moment of a crash.
func (n *Registry) DropManifests() {
	dir := n.o.Dir
	entries, err := n.o.FS.ReadDir(dir)
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
			if err := n.o.FS.Remove(filepath.Join(dir, e.Name())); err != nil {
				n.o.Report.Logger.Warn("store: cannot remove the manifest of a namespace without records", "err", err,
					"remedy", "none: it is tried again at the next start")
			}
		}
	}
}
