package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// PromptRequest is what POST /v1/prompts/remove asks for.
type PromptRequest struct {
	prompt.Prompt
	// DryRun has the records counted, and none removed.
	DryRun bool `json:"dry_run,omitempty"`
}

// PromptRemoval is the answer of POST /v1/prompts/remove.
type PromptRemoval struct {
	DryRun bool `json:"dry_run"`
	// Namespaces are those of the model.
	Namespaces []PromptNamespace `json:"namespaces"`
	// Unknown namespaces have lost their manifest, and may be of the model: nothing was looked for in them.
	Unknown int `json:"unknown"`
	// Bucket is as in [Removal].
	Bucket bool `json:"bucket"`
}

// PromptNamespace is what was removed of one namespace.
type PromptNamespace struct {
	Digest string `json:"digest"`
	Engine string `json:"engine"`
	// OwnKeys says that its engines name blocks by hashes of their own: nothing was looked for.
	OwnKeys bool `json:"own_keys"`
	// Blocks are the prompt's whole blocks.
	Blocks int `json:"blocks"`
	purge.PromptResult
	// HostRemoved records were in the host tier.
	HostRemoved int `json:"host_removed"`
}

// ServePromptRemoval removes what the disk and the host tier hold of one prompt, and of what continues it.
func (s *Service) ServePromptRemoval(w http.ResponseWriter, r *http.Request) {
	q := new(PromptRequest)
	err := prompt.Decode(w, r, "model, tokens and dry_run", q)
	if err == nil {
		err = q.Validate()
	}
	if err == nil && len(q.Tokens) == 0 {
		err = errors.New("tokens is empty")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.counting <- struct{}{}: // it looks at every record
		defer func() { <-s.counting }()
	case <-r.Context().Done():
		return
	}
	a := &PromptRemoval{DryRun: q.DryRun, Namespaces: []PromptNamespace{}, Bucket: s.o.Bucket}
	records := int64(0)
	all := s.o.Disk.Namespaces()
	for i := range all {
		switch {
		case all[i].Manifest != nil:
		case !all[i].Forgotten:
			a.Unknown++
		case !q.DryRun: // the disk has none of its records, and does not know its model; memory may have some
			s.o.Host.Forget(all[i].Digest)
		}
	}
	for _, m := range prompt.Manifests(q.Model, all) {
		n, err := s.removePrompt(r.Context(), q, m)
		if err != nil {
			s.o.Logger.Warn("a prompt could not be removed on request", "namespace", n.Digest, "err", err,
				"remedy", "ask for it again; if it goes on, look for I/O errors in the kernel's log")
			http.Error(w, fmt.Sprintf("%d records were removed, and may be back after a crash: %v", records+n.Records+n.Continuations, err), http.StatusInternalServerError)
			return
		}
		records += n.Records + n.Continuations
		a.Namespaces = append(a.Namespaces, n)
	}
	if !q.DryRun {
		s.o.Logger.Info("a prompt was removed on request", "model", q.Model, "tokens", len(q.Tokens), "records", records)
	}
	// Each namespace may have had loads to wait for.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	httpserve.WriteJSON(w, http.StatusOK, a, "  ")
}

// answerTimeout bounds the writing of an answer that took long to find.
const answerTimeout = 30 * time.Second

// removePrompt removes a prompt from one namespace.
func (s *Service) removePrompt(ctx context.Context, q *PromptRequest, m *connector.Manifest) (n PromptNamespace, err error) {
	ns := m.Digest()
	n = PromptNamespace{Digest: ns.String(), Engine: m.Engine, OwnKeys: m.KeyScheme == connector.KeySchemeEngine}
	if n.OwnKeys {
		return n, nil
	}
	keys := q.Keys(m.BlockSize)
	if n.Blocks = len(keys); n.Blocks == 0 {
		return n, nil
	}
	shards := shardsOf(m)
	if n.PromptResult, err = s.o.Disk.PurgePrompt(ctx, ns, shards, keys, leaseWait, q.DryRun); err != nil || q.DryRun {
		return n, err
	}
	of := make(map[connector.Shard][]connector.Key)
	for _, shard := range shards {
		of[shard] = slices.Clone(keys) // host memory may have what the disk has not
	}
	for i := range n.Found {
		id := &n.Found[i].ID
		of[id.Shard] = append(of[id.Shard], id.Key)
	}
	n.HostRemoved = s.forgetRecords(ctx, ns, of)
	return n, nil
}

// forgetRecords removes records from the host tier, and waits a while for those that are being read into it.
func (s *Service) forgetRecords(ctx context.Context, ns connector.NamespaceDigest, of map[connector.Shard][]connector.Key) (removed int) {
	for end := time.Now().Add(fillWait); ; {
		filling := 0
		for shard, keys := range of {
			n, left := s.o.Host.ForgetRecords(ns, shard, keys)
			removed, filling = removed+n, filling+left
		}
		if filling == 0 || ctx.Err() != nil || time.Now().After(end) {
			return removed
		}
		time.Sleep(fillPause)
	}
}
