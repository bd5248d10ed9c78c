// Package namespace knows the namespaces that a store has seen: their numbers, manifests and
// payload sizes, and which engines have them open.
package namespace

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/record"
)

// maxNamespaces is what the index has room to number.
const maxNamespaces = 1 << 16

// ErrNotOpen says that a namespace is not known.
var ErrNotOpen = fmt.Errorf("namespace is not open: %w", store.ErrInvalid)

// Options are what a [Registry] needs of the store.
type Options struct {
	FS fsio.FS
	// Dir is the directory of the manifests.
	Dir    string
	Report *report.Report
	// Claim takes room for a manifest of that many bytes about to be written, Unclaim gives it
	// back.
	Claim   func(bytes int) error
	Unclaim func(bytes int)
	// Reused is called when a number is given out again that past events may name, before it
	// means the new namespace to anyone. It must not call the registry.
	Reused func()
}

// Registry has the namespaces a store has seen. A namespace is in memory alone until the first
// record is saved into it; then its manifest becomes a file, so that it outlives the
// journal, and its number goes into the journal. So an engine that connects never waits
// for the disk, and one that saves nothing leaves nothing. A Registry may be used by any number
// of goroutines.
type Registry struct {
	o Options

	// mu is never held across I/O.
	mu     sync.RWMutex
	byID   []*namespace
	lookup map[connector.NamespaceDigest]uint16
	// unused and used are numbers to give out again when there is no new one, oldest first.
	// Numbers of namespaces that had records come last: events may still name them.
	unused, used []uint16
	// keeping has the namespaces whose manifest is being written; each is closed after that.
	keeping map[uint16]chan struct{}

	// tidy asks the store to tidy; wrong are the payload sizes to look at then.
	tidy  chan struct{}
	wrong map[index.Group]bool

	closed bool
	began  time.Time
}

// namespace is one namespace, guarded by the mutex of the registry.
type namespace struct {
	digest   connector.NamespaceDigest
	manifest []byte // canonical JSON, nil if its file is lost
	scheme   record.KeyScheme
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
	// hits are the blocks that look-ups have found, lastUse how long after the opening the last one or the last save was; 0 if there
	// was none.
	hits    atomic.Uint64
	lastUse atomic.Int64
}

// New returns a registry that knows no namespace.
func New(o Options) *Registry {
	n := &Registry{o: o, tidy: make(chan struct{}, 1), began: time.Now()}
	n.reset()
	return n
}

// reset forgets all namespaces.
func (n *Registry) reset() {
	n.byID, n.unused, n.used = nil, nil, nil
	n.lookup = make(map[connector.NamespaceDigest]uint16)
	n.keeping = make(map[uint16]chan struct{})
	n.wrong = make(map[index.Group]bool)
}

// Open makes the namespace that m describes known, and returns its digest. Every call is to be
// followed by one of [Registry.Leave].
func (n *Registry) Open(m *connector.Manifest) (digest connector.NamespaceDigest, err error) {
	text := m.Canonical()
	digest = m.Digest()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return digest, store.ErrClosed
	}
	id, known := n.lookup[digest]
	if !known {
		if id, err = n.add(digest, text); err != nil {
			n.RequestTidy()
			return digest, err
		}
	}
	e := n.byID[id]
	if e.manifest == nil {
		e.manifest, e.scheme = text, schemeOf(text)
	}
	if known && !e.kept && e.listed {
		n.RequestTidy() // its file is lost
	}
	e.engines++
	e.opened++
	return digest, nil
}

// Leave says that an engine which had opened the namespace has gone. A namespace
// that no engine has open and that has no records is forgotten.
func (n *Registry) Leave(ns connector.NamespaceDigest) {
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

// Close refuses to open namespaces from now on.
func (n *Registry) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}

// at returns a namespace that is known, or nil. n.mu is held.
func (n *Registry) at(id uint16) *namespace {
	if int(id) >= len(n.byID) || n.byID[id].gone {
		return nil
	}
	return n.byID[id]
}

// remove forgets a namespace. Its number is not free before the caller says so. n.mu is held.
func (n *Registry) remove(id uint16) {
	e := n.byID[id]
	e.gone, e.manifest = true, nil
	delete(n.lookup, e.digest)
}

// List returns the namespaces of the store.
func (n *Registry) List() []store.NamespaceInfo {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]store.NamespaceInfo, 0, len(n.lookup))
	for _, e := range n.byID {
		if !e.gone || e.used.Load() {
			out = append(out, store.NamespaceInfo{Digest: e.digest, Manifest: slices.Clone(e.manifest), Forgotten: e.gone})
		}
	}
	return out
}

// add gives a namespace a number. n.mu is held.
func (n *Registry) add(digest connector.NamespaceDigest, manifest []byte) (uint16, error) {
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
		n.o.Reused()
	default:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, store.ErrBusy)
	}
	n.lookup[digest] = id
	return id, nil
}

// Find returns the number of a digest for records found in headers, noting the namespace
// if it is not known.
func (n *Registry) Find(digest connector.NamespaceDigest) (uint16, error) {
	n.mu.RLock()
	id, ok := n.lookup[digest]
	n.mu.RUnlock()
	if ok {
		return id, nil
	}
	manifest, _ := n.readManifest(digest) // one that is lost is written again when an engine brings it
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
func (n *Registry) of(digest connector.NamespaceDigest) *namespace {
	if id, known := n.lookup[digest]; known {
		return n.byID[id]
	}
	return nil
}

// Number returns the number of a namespace, if it is known.
func (n *Registry) Number(digest connector.NamespaceDigest) (id uint16, known bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, known = n.lookup[digest]
	return id, known
}

// Count returns how many namespaces are known.
func (n *Registry) Count() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.lookup)
}

// schemeOf is the key scheme that a manifest names.
func schemeOf(manifest []byte) record.KeyScheme {
	var m struct {
		KeyScheme string `json:"key_scheme"`
	}
	if json.Unmarshal(manifest, &m) != nil {
		return record.KeySchemeUnknown
	}
	return record.KeySchemeOf(m.KeyScheme)
}

// Identity returns what the headers of a namespace's records say of it.
func (n *Registry) Identity(id uint16) (connector.NamespaceDigest, record.KeyScheme) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byID[id].digest, n.byID[id].scheme
}

// Digest returns the digest of a namespace that is known or was; zero, which is none's, where the
// journal has lost what a number means.
func (n *Registry) Digest(id uint16) (digest connector.NamespaceDigest) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(id) < len(n.byID) {
		digest = n.byID[id].digest
	}
	return digest
}

// Known says of each number whether it is that of a namespace.
func (n *Registry) Known() (known [maxNamespaces]bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for id, e := range n.byID {
		known[id] = !e.gone
	}
	return known
}

// Put notes namespace and payload size of a record that is added in the batch of a journal,
// unless the journal has them.
func (n *Registry) Put(batch *journal.Batch, g index.Group, bytes uint32) error {
	n.mu.RLock()
	e := n.byID[g.Namespace]
	e.inserted.Add(1)
	listed, noted := e.listed, e.noted[g.Shard]
	n.mu.RUnlock()
	if listed && noted {
		return nil
	}
	n.mu.Lock()
	e.listed, e.noted[g.Shard] = true, true
	n.mu.Unlock()
	if !listed {
		if err := batch.PutNamespace(journal.Namespace{ID: g.Namespace, Digest: e.digest}); err != nil {
			return err
		}
	}
	if !noted {
		return batch.PutSize(g.Namespace, g.Shard, bytes)
	}
	return nil
}

// Draft writes the namespaces that have records, or may have, into a new journal.
func (n *Registry) Draft(d *journal.Draft) {
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

// Unnote has the numbers and sizes noted again with the next record: a new journal need not
// have those that came while it was written.
func (n *Registry) Unnote() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.byID {
		e.listed = false
		clear(e.noted)
	}
}

// Load replaces what is known by the numbers in a journal and the manifests in files.
func (n *Registry) Load(j *journal.Journal) error {
	noted, err := j.Namespaces()
	if err != nil {
		return err
	}
	slices.SortFunc(noted, func(a, b journal.Namespace) int { return int(a.ID) - int(b.ID) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reset()
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
		if err := n.loadManifest(n.byID[id]); err != nil {
			n.o.Report.Note("manifest of namespace %v is lost (%v)", e.Digest, err)
		}
	}
	return j.Sizes(func(id uint16, shard connector.Shard, bytes uint32) {
		if e := n.at(id); e != nil {
			e.sizes[shard], e.noted[shard] = int(bytes), true
		}
	})
}
