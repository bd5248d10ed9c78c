package server

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// handler turns the frames of one connection into calls on its session. Exactly one of
// scheduler and worker is set.
type handler struct {
	namespace connector.NamespaceDigest
	scheduler Scheduler
	worker    Worker
	// match is reused: it is the hottest request.
	match connector.MatchRequest
}

// hello checks the first frame and opens the session.
func (s *Server) hello(ctx context.Context, f *wire.Frame, peer Peer) (*handler, error) {
	defer closeFiles(f.Files)
	if f.Op != wire.OpHello || f.Kind != wire.KindRequest {
		return nil, fmt.Errorf("%w: %s before hello", connector.ErrProtocol, f.Op)
	}
	var m wire.Hello
	if err := m.Decode(f.Body); err != nil {
		return nil, err
	}
	if m.MinVersion > wire.MaxVersion || m.MaxVersion < wire.MinVersion {
		return nil, fmt.Errorf("%w: the client speaks %d to %d, this daemon %d to %d",
			connector.ErrVersion, m.MinVersion, m.MaxVersion, wire.MinVersion, wire.MaxVersion)
	}
	manifest, err := connector.ParseManifest(m.Manifest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
	}
	if m.Engine == "" {
		return nil, fmt.Errorf("%w: engine id is empty", connector.ErrBadRequest)
	}
	h := new(handler)
	if h.namespace, err = manifest.Digest(); err != nil {
		return nil, err
	}
	peer.Client, peer.Engine = m.Client, m.Engine
	switch m.Role {
	case wire.RoleScheduler:
		h.scheduler, err = s.backend.OpenScheduler(ctx, peer, manifest)
	case wire.RoleWorker:
		if int(m.Shard) >= manifest.Shards() {
			return nil, fmt.Errorf("%w: shard %d of a manifest with %d", connector.ErrBadRequest, m.Shard, manifest.Shards())
		}
		h.worker, err = s.backend.OpenWorker(ctx, peer, manifest, m.Shard)
	default:
		return nil, fmt.Errorf("%w: role %q, want %q or %q", connector.ErrBadRequest, m.Role, wire.RoleScheduler, wire.RoleWorker)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (h *handler) close() {
	if h.scheduler != nil {
		h.scheduler.Close()
	} else {
		h.worker.Close()
	}
}

// handle answers one request with a function that appends the answer's body.
func (h *handler) handle(ctx context.Context, f *wire.Frame) (func([]byte) []byte, error) {
	if f.Kind != wire.KindRequest {
		return nil, fmt.Errorf("%w: %s frame of kind %d from a client", connector.ErrProtocol, f.Op, f.Kind)
	}
	if len(f.Files) > 0 && f.Op != wire.OpRegister {
		return nil, fmt.Errorf("%w: %s frame with descriptors", connector.ErrProtocol, f.Op)
	}
	switch {
	case h.scheduler != nil && f.Op >= wire.OpMatch && f.Op <= wire.OpLoaded:
		return h.handleScheduler(ctx, f)
	case h.worker != nil && (f.Op == wire.OpRegister || f.Op >= wire.OpLoad):
		return h.handleWorker(ctx, f)
	}
	return nil, fmt.Errorf("%w: %s is not for this role", connector.ErrProtocol, f.Op)
}

func (h *handler) handleScheduler(ctx context.Context, f *wire.Frame) (func([]byte) []byte, error) {
	switch f.Op {
	case wire.OpMatch:
		if err := wire.DecodeMatch(f.Body, &h.match); err != nil {
			return nil, err
		}
		offer, err := h.scheduler.Match(ctx, &h.match)
		return func(b []byte) []byte { return wire.AppendOffer(b, offer) }, err
	case wire.OpStep:
		var m connector.StepRequest
		if err := wire.DecodeStep(f.Body, &m); err != nil {
			return nil, err
		}
		reply, err := h.scheduler.Step(ctx, &m)
		return func(b []byte) []byte { return wire.AppendStepReply(b, &reply) }, err
	default:
		var m connector.LoadedReport
		if err := wire.DecodeLoaded(f.Body, &m); err != nil {
			return nil, err
		}
		return wire.AppendEmpty, h.scheduler.Loaded(ctx, &m)
	}
}

func (h *handler) handleWorker(ctx context.Context, f *wire.Frame) (func([]byte) []byte, error) {
	switch f.Op {
	case wire.OpRegister:
		var l connector.Layout
		if err := wire.DecodeLayout(f.Body, &l); err != nil {
			return nil, err
		}
		files := f.Files
		f.Files = nil // the session owns them from here
		n, err := h.worker.Register(ctx, &l, files)
		return func(b []byte) []byte { return wire.AppendRegisterReply(b, n) }, err
	case wire.OpPoll:
		loads, err := h.worker.Poll(ctx)
		return func(b []byte) []byte { return wire.AppendFinished(b, loads) }, err
	}
	meta, err := wire.DecodeMeta(f.Body)
	if err != nil {
		return nil, err
	}
	if f.Op == wire.OpLoad {
		n, err := h.worker.Load(ctx, meta)
		return func(b []byte) []byte { return wire.AppendLoadReply(b, n) }, err
	}
	r, err := h.worker.Save(ctx, meta)
	return func(b []byte) []byte { return wire.AppendSaveResult(b, r) }, err
}
