package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

// namespaces are those that engines, or the uploader, have opened on this node.
type namespaces struct {
	mu    sync.Mutex
	known map[connector.NamespaceDigest]*namespace
	// read has manifests of others that were read from the bucket, readBytes their bytes.
	read      map[connector.NamespaceDigest][]byte
	readBytes int
}

// maxReadBytes bounds the manifests of others that are kept in memory: some thousands.
const maxReadBytes = 4 << 20

type namespace struct {
	manifest []byte // canonical JSON
	width    int    // bytes of an element, 0 if it is not known
	opened   int
	holds    map[connector.Shard]*hold

	put sync.Mutex // held while the manifest is written
	// written is the bucket that has the manifest.
	written format.BucketID
}

// hold is the size of a shard's payloads that engines have registered.
type hold struct{ bytes, holders int }

func (n *namespaces) init() {
	n.known, n.read = make(map[connector.NamespaceDigest]*namespace), make(map[connector.NamespaceDigest][]byte)
}

func (n *namespaces) get(digest connector.NamespaceDigest) *namespace {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known[digest]
}

// OpenNamespace implements [store.Namespaces], as do the methods up to ReleasePayload. It does not fail while the
// tier is open.
func (t *Tier) OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	digest := m.Digest()
	if t.closed.Load() {
		return digest, store.ErrClosed
	}
	n := &t.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	ns := n.known[digest]
	if ns == nil {
		ns = &namespace{manifest: m.Canonical(), width: codec.Width(m.KVDType), holds: make(map[connector.Shard]*hold)}
		n.known[digest] = ns
	}
	ns.opened++
	return digest, nil
}

// manifest is that of a namespace that was opened here, or read before; nil if neither.
func (n *namespaces) manifest(digest connector.NamespaceDigest) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ns := n.known[digest]; ns != nil {
		return ns.manifest
	}
	return n.read[digest]
}

// keep keeps a manifest that was read, if there is room. A digest never gets another one.
func (n *namespaces) keep(digest connector.NamespaceDigest, manifest []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.read[digest] == nil && n.readBytes+len(manifest) <= maxReadBytes {
		n.read[digest] = manifest
		n.readBytes += len(manifest)
	}
}

// CloseNamespace counts down.
func (t *Tier) CloseNamespace(digest connector.NamespaceDigest) {
	t.namespaces.mu.Lock()
	defer t.namespaces.mu.Unlock()
	if ns := t.namespaces.known[digest]; ns != nil && ns.opened > 0 {
		ns.opened--
	}
}

// PayloadBytes is the size of the records that look-ups find: a bucket may have others of the same shard.
func (t *Tier) PayloadBytes(digest connector.NamespaceDigest, shard connector.Shard) int {
	return t.catalog.PayloadBytes(digest, shard)
}

// HoldPayload has look-ups find records of one size. It refuses none because of the bucket's records, but two
// engines must not hold different sizes.
func (t *Tier) HoldPayload(digest connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	n := &t.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	ns := n.known[digest]
	if err := ns.checkSize(digest, shard, bytes); err != nil {
		return err
	}
	h := ns.holds[shard]
	if h == nil {
		h = &hold{bytes: bytes}
		ns.holds[shard] = h
	}
	h.holders++
	t.catalog.HoldPayload(digest, shard, bytes)
	return nil
}

// ReleasePayload ends one HoldPayload.
func (t *Tier) ReleasePayload(digest connector.NamespaceDigest, shard connector.Shard) {
	n := &t.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	ns := n.known[digest]
	if ns == nil || ns.holds[shard] == nil {
		return
	}
	h := ns.holds[shard]
	t.catalog.ReleasePayload(digest, shard, h.bytes)
	if h.holders--; h.holders == 0 {
		delete(ns.holds, shard)
	}
}

// checkSize returns an error if the namespace was not opened, or an engine holds another size. The mutex of namespaces
// is held.
func (ns *namespace) checkSize(digest connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	if ns == nil {
		return fmt.Errorf("namespace %v is not known: %w", digest, store.ErrInvalid)
	}
	if h := ns.holds[shard]; h != nil && h.bytes != bytes {
		return &store.PayloadSizeError{Namespace: digest, Shard: shard, Bytes: bytes, Stored: h.bytes, Held: true}
	}
	return nil
}

// knows reports whether records of a namespace may be asked for.
func (t *Tier) knows(digest connector.NamespaceDigest) bool {
	return t.namespaces.get(digest) != nil || slices.Contains(t.catalog.Namespaces(), digest)
}

// describe puts the manifest of a namespace, unless the bucket has it.
func (t *Tier) describe(ctx context.Context, id format.BucketID, digest connector.NamespaceDigest) error {
	ns := t.namespaces.get(digest)
	ns.put.Lock()
	defer ns.put.Unlock()
	if ns.written == id {
		return nil
	}
	name := format.NamespaceName(digest)
	list := format.List{Name: name, Bucket: id, Writer: t.outbox.Writer(), Manifest: ns.manifest}
	b, err := list.Encode(t.o.Ring)
	if err == nil {
		_, err = t.bucket.Put(ctx, name.String(), bytes.NewReader(b), int64(len(b)), bucket.Condition{Absent: true})
	}
	if err != nil && !errors.Is(err, bucket.ErrCondition) { // then it is there
		return fmt.Errorf("write manifest of namespace %v: %w", digest, err)
	}
	ns.written = id
	return nil
}

// Manifest is the canonical manifest of a namespace. The first time, that of a namespace which only other nodes have
// opened is read from the bucket. It returns [store.ErrGone] if it is not there, archived, or not what its name
// says, and [store.ErrIO] if the bucket does not answer. The caller must not change it.
func (t *Tier) Manifest(ctx context.Context, digest connector.NamespaceDigest) ([]byte, error) {
	if m := t.namespaces.manifest(digest); m != nil {
		return m, nil
	}
	id, usable := t.follower.Bucket()
	if !usable {
		return nil, fmt.Errorf("manifest of namespace %v: the bucket is not known: %w", digest, store.ErrIO)
	}
	s, err := follow.ReadList(ctx, t.bucket, format.NamespaceName(digest), id, t.o.Ring)
	switch {
	case errors.Is(err, bucket.ErrMissing), errors.Is(err, bucket.ErrArchived): // months may pass before it is restored
		return nil, fmt.Errorf("manifest of namespace %v: %w: %w", digest, store.ErrGone, err)
	case err != nil:
		return nil, fmt.Errorf("manifest of namespace %v: %w: %w", digest, store.ErrIO, err)
	case s.Bad != nil:
		return nil, fmt.Errorf("manifest of namespace %v: %w: %w", digest, store.ErrGone, s.Bad)
	}
	t.namespaces.keep(digest, s.List.Manifest)
	return s.List.Manifest, nil
}
