package disk

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// maxNamespaces is what the index has room to number.
const maxNamespaces = 1 << 16

// namespaces are the namespaces a store has seen. One is in memory alone until the first
// record is saved into it; then its manifest becomes a file, so that it outlives the
// journal, and its number goes into the journal. So an engine that connects never waits
// for the disk, and one that saves nothing leaves nothing.
type namespaces struct {
	// mu is never held across I/O.
	mu     sync.RWMutex
	byID   []*namespace
	lookup map[connector.NamespaceDigest]uint16
	// unused and used are numbers to give out again when there is no new one, oldest first.
	// Those of namespaces that had records come last: events may still name them.
	unused, used []uint16
	reused       bool // one of used was given out, and nobody has been told yet
	// keeping has the namespaces whose manifest is being written; each is closed after that.
	keeping map[uint16]chan struct{}

	// tidy asks for [Store.tidyNamespaces]; wrong are the payload sizes to look at then.
	tidy  chan struct{}
	wrong map[index.Group]bool

	closed bool
}

type namespace struct {
	digest   connector.NamespaceDigest
	manifest []byte // canonical JSON, nil if its file is lost
	scheme   format.KeyScheme
	// sizes is the payload size of each shard that has been seen; noted are those the
	// journal has.
	sizes map[connector.Shard]int
	noted map[connector.Shard]bool
	// holds are the sizes that engines have registered.
	holds map[connector.Shard]sizeHold

	engines int    // that have it open
	opened  uint64 // how often it was opened
	kept    bool   // its manifest is a file
	listed  bool   // the journal has its number
	gone    bool   // forgotten; its number may be given out again
	// used is set when a write was accepted or the journal had it, inserted counts records.
	used     atomic.Bool
	inserted atomic.Uint64
}

// NamespaceInfo describes a namespace of a store.
type NamespaceInfo struct {
	Digest connector.NamespaceDigest
	// Manifest is the canonical JSON, or nil if it was lost with its file.
	Manifest []byte
	// Forgotten is set where there are neither records nor engines any more, but there may
	// be subscribers that have not come to the removal of the last record.
	Forgotten bool
}

// init makes n as it is before any namespace is known.
func (n *namespaces) init() {
	n.byID, n.unused, n.used = nil, nil, nil
	n.lookup = make(map[connector.NamespaceDigest]uint16)
	n.keeping = make(map[uint16]chan struct{})
	n.tidy = make(chan struct{}, 1)
	n.wrong = make(map[index.Group]bool)
}

// OpenNamespace makes the namespace that m describes known, and returns its digest. It does
// not wait for the disk. Every call is to be followed by one of [Store.CloseNamespace].
func (s *Store) OpenNamespace(m *connector.Manifest) (digest connector.NamespaceDigest, err error) {
	text, err := m.Canonical()
	if err != nil {
		return digest, err
	}
	if digest, err = m.Digest(); err != nil {
		return digest, err
	}
	n := &s.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return digest, store.ErrClosed
	}
	id, known := n.lookup[digest]
	if !known {
		if id, err = n.add(digest, text); err != nil {
			n.requestTidy()
			return digest, err
		}
	}
	if n.reused {
		n.reused = false
		s.events.log.Skip()
	}
	e := n.byID[id]
	if e.manifest == nil {
		e.manifest, e.scheme = text, schemeOf(text)
	}
	if known && !e.kept && e.listed {
		n.requestTidy() // its file is lost
	}
	e.engines++
	e.opened++
	return digest, nil
}

// CloseNamespace says that an engine which had opened the namespace has gone. A namespace
// that no engine has open and that has no records is forgotten.
func (s *Store) CloseNamespace(ns connector.NamespaceDigest) {
	n := &s.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	id, known := n.lookup[ns]
	if !known || n.byID[id].engines == 0 {
		return
	}
	e := n.byID[id]
	if e.engines--; e.engines > 0 {
		return
	}
	if !e.used.Load() && !e.kept && !e.listed {
		n.remove(id)
		n.unused = append(n.unused, id)
	}
}

// close refuses to open namespaces from now on.
func (n *namespaces) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}

// at returns a namespace that is known, or nil. n.mu is held.
func (n *namespaces) at(id uint16) *namespace {
	if int(id) >= len(n.byID) || n.byID[id].gone {
		return nil
	}
	return n.byID[id]
}

// remove forgets a namespace. Its number is not free before the caller says so. n.mu is held.
func (n *namespaces) remove(id uint16) {
	e := n.byID[id]
	e.gone, e.manifest = true, nil
	delete(n.lookup, e.digest)
}

// Namespaces lists the namespaces of the store.
func (s *Store) Namespaces() []NamespaceInfo {
	n := &s.namespaces
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]NamespaceInfo, 0, len(n.lookup))
	for _, e := range n.byID {
		if !e.gone || e.used.Load() {
			out = append(out, NamespaceInfo{Digest: e.digest, Manifest: slices.Clone(e.manifest), Forgotten: e.gone})
		}
	}
	return out
}

// add gives a namespace a number. n.mu is held.
func (n *namespaces) add(digest connector.NamespaceDigest, manifest []byte) (uint16, error) {
	e := &namespace{
		digest: digest, manifest: manifest, scheme: schemeOf(manifest),
		sizes: make(map[connector.Shard]int), noted: make(map[connector.Shard]bool),
		holds: make(map[connector.Shard]sizeHold),
	}
	id := uint16(len(n.byID))
	switch {
	case len(n.byID) < maxNamespaces:
		n.byID = append(n.byID, e)
	case len(n.unused) > 0:
		id, n.unused = n.unused[0], n.unused[1:]
		n.byID[id] = e
	case len(n.used) > 0:
		id, n.used = n.used[0], n.used[1:]
		n.byID[id] = e
		n.reused = true
	default:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, store.ErrBusy)
	}
	n.lookup[digest] = id
	return id, nil
}

// findNamespace returns the number of a digest for records found in headers, noting the namespace
// if it is not known.
func (s *Store) findNamespace(digest connector.NamespaceDigest) (uint16, error) {
	n := &s.namespaces
	n.mu.RLock()
	id, ok := n.lookup[digest]
	n.mu.RUnlock()
	if ok {
		return id, nil
	}
	manifest, _ := s.readManifest(digest) // one that is lost is written again when an engine brings it
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok = n.lookup[digest]; ok {
		return id, nil
	}
	id, err := n.add(digest, manifest)
	if err == nil {
		e := n.byID[id]
		e.kept = manifest != nil
		e.used.Store(true)
	}
	return id, err
}

// of returns a namespace that is known, or nil. n.mu is held.
func (n *namespaces) of(digest connector.NamespaceDigest) *namespace {
	if id, known := n.lookup[digest]; known {
		return n.byID[id]
	}
	return nil
}

// number returns the number of a namespace, if it is known.
func (n *namespaces) number(digest connector.NamespaceDigest) (id uint16, known bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, known = n.lookup[digest]
	return id, known
}

func (n *namespaces) count() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.lookup)
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

// identity returns what the headers of a namespace's records say of it.
func (n *namespaces) identity(id uint16) (connector.NamespaceDigest, format.KeyScheme) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byID[id].digest, n.byID[id].scheme
}

// digest returns the digest of a namespace that is known or was; zero, which is none's, where the
// journal has lost what a number means.
func (n *namespaces) digest(id uint16) (digest connector.NamespaceDigest) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(id) < len(n.byID) {
		digest = n.byID[id].digest
	}
	return digest
}

// unlisted reports whether the journal does not have the number of a namespace yet, and
// takes it that it has from now on.
func (n *namespaces) unlisted(id uint16) bool {
	n.mu.RLock()
	listed := n.byID[id].listed
	n.mu.RUnlock()
	if listed {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[id].listed = true
	return true
}

// inserted counts a record that the committer adds.
func (n *namespaces) insert(id uint16) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	n.byID[id].inserted.Add(1)
}

// draft writes the namespaces that have records, or may have, into a new journal.
func (n *namespaces) draft(d *journal.Draft) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for i, e := range n.byID {
		if e.gone || !e.used.Load() && !e.kept && !e.listed {
			continue
		}
		d.PutNamespace(journal.Namespace{ID: uint16(i), Digest: e.digest})
		for shard := range e.noted {
			d.PutSize(uint16(i), shard, uint32(e.sizes[shard]))
		}
	}
}

// unnote has the numbers and sizes noted again with the next record: a new journal need not
// have those that came while it was written.
func (n *namespaces) unnote() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.byID {
		e.listed = false
		clear(e.noted)
	}
}

// loadNamespaces reads the namespaces' numbers from the journal and their manifests from
// files.
func (s *Store) loadNamespaces() error {
	n := &s.namespaces
	n.init()
	noted, err := s.journal.Namespaces()
	if err != nil {
		return err
	}
	slices.SortFunc(noted, func(a, b journal.Namespace) int { return int(a.ID) - int(b.ID) })
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range noted {
		for len(n.byID) < int(e.ID) { // the number of one that was forgotten
			n.unused = append(n.unused, uint16(len(n.byID)))
			n.byID = append(n.byID, &namespace{gone: true})
		}
		id, err := n.add(e.Digest, nil)
		if err != nil {
			return err
		}
		n.byID[id].listed = true
		n.byID[id].used.Store(true)
		if err := s.loadManifest(n.byID[id]); err != nil {
			s.report.Note("manifest of namespace %v is lost (%v)", e.Digest, err)
		}
	}
	return s.journal.Sizes(func(id uint16, shard connector.Shard, bytes uint32) {
		if e := n.at(id); e != nil {
			e.sizes[shard], e.noted[shard] = int(bytes), true
		}
	})
}
