// Package admin is what an administrator may see and change of a store over the daemon's HTTP interface.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Namespace is one namespace of the store: all records that engines of one configuration can share.
type Namespace struct {
	Digest string `json:"digest"`
	// Model and the fields after it are those of the manifest. They are empty if it was lost, until an engine brings it again.
	Model            string `json:"model"`
	Revision         string `json:"revision"`
	Engine           string `json:"engine"`
	KVDType          string `json:"kv_dtype"`
	BlockSize        int    `json:"block_size"`
	TensorParallel   int    `json:"tensor_parallel"`
	PipelineParallel int    `json:"pipeline_parallel"`
	// Records on disk, and the bytes of their payloads.
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
	// Hits are blocks that look-ups found on disk, LastUse when the last was found or a record was last saved, both since the
	// daemon's start.
	Hits    uint64     `json:"hits"`
	LastUse *time.Time `json:"last_use,omitempty"`
	// Sessions are the schedulers and ranks that have it open now.
	Sessions int `json:"sessions"`
}

// List is the answer of GET /v1/namespaces.
type List struct {
	// Namespaces are sorted by model, those with the most bytes first.
	Namespaces []Namespace `json:"namespaces"`
}

// Disk is the store that is administered.
type Disk interface {
	// Contents counts the records of each namespace.
	Contents() []store.Contents
	// Purge removes all records of a namespace: see [purge.Purges].
	Purge(ctx context.Context, ns connector.NamespaceDigest, wait time.Duration) (purge.Result, error)
	// PurgePrompt removes the blocks of a prompt, and what continues it: see [purge.Purges].
	PurgePrompt(ctx context.Context, ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key, wait time.Duration, dry bool) (purge.PromptResult, error)
	// Tenants lists those with records.
	Tenants() []tenants.Tenant
	// PurgeTenant removes all records of a tenant. It fails with [store.ErrBusy] if they cannot be told from others'.
	PurgeTenant(ctx context.Context, id tenants.ID, wait time.Duration) (purge.Result, error)
	// Namespaces lists the namespaces, without counting.
	Namespaces() []store.NamespaceInfo
}

// Host is the host tier.
type Host interface {
	// Forget lets go of all records of a namespace but those that are being filled.
	Forget(ns connector.NamespaceDigest) (forgotten, filling int)
	// ForgetRecords lets go of single records.
	ForgetRecords(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) (forgotten, filling int)
}

// Options are what a [Service] works on.
type Options struct {
	Disk Disk
	Host Host
	Pins Pins
	// Store is the disk, for archives. Sync returns when everything written to it is durable, Sealed says that it is sealed.
	Store  Store
	Sync   func(context.Context) error
	Sealed bool
	// Bucket says that there is an object tier, too.
	Bucket bool
	// Tenants are those with names, and all quotas.
	Tenants *tenantfile.Live
	Logger  *slog.Logger
}

// Service answers an administrator. Its methods may be called from any goroutine.
type Service struct {
	o Options
	// counting has room for one: a count looks at every record.
	counting chan struct{}
	// archiving has room for one archive.
	archiving chan struct{}
}

// New returns a service for a store that is open.
func New(o Options) *Service {
	return &Service{o: o, counting: make(chan struct{}, 1), archiving: make(chan struct{}, 1)}
}

// ServeList answers with the namespaces.
func (s *Service) ServeList(w http.ResponseWriter, r *http.Request) {
	select {
	case s.counting <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	all := s.o.Disk.Contents()
	<-s.counting
	httpserve.WriteJSON(w, http.StatusOK, ListOf(all), "  ")
}

// ListOf lists what a store holds.
func ListOf(all []store.Contents) *List {
	l := &List{Namespaces: make([]Namespace, len(all))}
	for i := range all {
		l.Namespaces[i] = of(&all[i])
	}
	slices.SortFunc(l.Namespaces, func(a, b Namespace) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Digest, b.Digest))
	})
	return l
}

func of(c *store.Contents) Namespace {
	n := Namespace{Digest: c.Digest.String(), Records: c.Records, Bytes: c.Bytes, Hits: c.Hits, Sessions: c.Sessions}
	if !c.LastUse.IsZero() {
		n.LastUse = &c.LastUse
	}
	var m connector.Manifest
	if json.Unmarshal(c.Manifest, &m) == nil {
		n.Model, n.Revision, n.Engine, n.KVDType = m.Model, m.Revision, m.Engine, m.KVDType
		n.BlockSize, n.TensorParallel, n.PipelineParallel = m.BlockSize, m.TensorParallel, m.PipelineParallel
	}
	return n
}
