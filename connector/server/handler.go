package server

import (
	"context"
	"fmt"
	"os"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// handler turns the frames of one connection into calls on its session. Exactly one of
// scheduler and worker is set.
type handler struct {
	namespace connector.NamespaceDigest
	scheduler Scheduler
	worker    Worker
	// match and keyed are reused: theirs are the hottest requests.
	match connector.MatchRequest
	keyed connector.KeyedBlocks
}

// answer is a reply: a function that appends its body, and descriptors, which stay the
// session's.
type answer struct {
	body  func([]byte) []byte
	files []*os.File
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
	peer.Client, peer.Engine, peer.Staged = m.Client, m.Engine, m.Staged
	switch m.Role {
	case wire.RoleScheduler:
		h.scheduler, err = s.backend.OpenScheduler(ctx, peer, manifest)
	case wire.RoleWorker:
		if m.Rank >= manifest.Ranks() {
			return nil, fmt.Errorf("%w: rank %d of a manifest with %d", connector.ErrBadRequest, m.Rank, manifest.Ranks())
		}
		h.worker, err = s.backend.OpenWorker(ctx, peer, manifest, m.Rank)
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

// handle answers one request.
func (h *handler) handle(ctx context.Context, f *wire.Frame) (answer, error) {
	if f.Kind != wire.KindRequest {
		return answer{}, fmt.Errorf("%w: %s frame of kind %d from a client", connector.ErrProtocol, f.Op, f.Kind)
	}
	if len(f.Files) > 0 && f.Op != wire.OpRegister {
		return answer{}, fmt.Errorf("%w: %s frame with descriptors", connector.ErrProtocol, f.Op)
	}
	switch {
	case h.scheduler != nil && f.Op >= wire.OpMatch && f.Op <= wire.OpReset:
		body, err := h.handleScheduler(ctx, f)
		return answer{body: body}, err
	case h.worker != nil && f.Op == wire.OpRegister:
		return h.register(ctx, f)
	case h.worker != nil && f.Op >= wire.OpPresent:
		body, err := h.handleKeyed(ctx, f)
		return answer{body: body}, err
	case h.worker != nil && f.Op > wire.OpRegister:
		body, err := h.handleWorker(ctx, f)
		return answer{body: body}, err
	}
	return answer{}, fmt.Errorf("%w: %s is not for this role", connector.ErrProtocol, f.Op)
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
	case wire.OpReset:
		return wire.AppendEmpty, h.scheduler.Reset(ctx)
	default:
		var m connector.LoadedReport
		if err := wire.DecodeLoaded(f.Body, &m); err != nil {
			return nil, err
		}
		return wire.AppendEmpty, h.scheduler.Loaded(ctx, &m)
	}
}

// register passes the descriptors on; the last is the fence page.
func (h *handler) register(ctx context.Context, f *wire.Frame) (answer, error) {
	var r Registration
	if err := wire.DecodeLayout(f.Body, &r.Layout); err != nil {
		return answer{}, err
	}
	if len(f.Files) < 2 {
		return answer{}, fmt.Errorf("%w: register with %d descriptors: want those of the regions and of the fence page",
			connector.ErrBadRequest, len(f.Files))
	}
	last := len(f.Files) - 1
	r.Regions, r.Fence = f.Files[:last], f.Files[last]
	f.Files = nil // the session owns them from here
	got, err := h.worker.Register(ctx, &r)
	a := answer{body: func(b []byte) []byte { return wire.AppendRegisterReply(b, got.BlockBytes) }}
	if got.Staging != nil {
		a.files = []*os.File{got.Staging}
	}
	return a, err
}

func (h *handler) handleWorker(ctx context.Context, f *wire.Frame) (func([]byte) []byte, error) {
	switch f.Op {
	case wire.OpUnregister:
		return wire.AppendEmpty, h.worker.Unregister(ctx)
	case wire.OpPoll:
		loads, err := h.worker.Poll(ctx)
		return func(b []byte) []byte { return wire.AppendFinished(b, loads) }, err
	case wire.OpCancel:
		request, err := wire.DecodeCancel(f.Body)
		if err != nil {
			return nil, err
		}
		return wire.AppendEmpty, h.worker.Cancel(ctx, request)
	}
	meta, err := wire.DecodeMeta(f.Body)
	if err != nil {
		return nil, err
	}
	if f.Op == wire.OpLoad {
		n, err := h.worker.Load(ctx, meta)
		return func(b []byte) []byte { return wire.AppendCount(b, n) }, err
	}
	r, err := h.worker.Save(ctx, meta)
	return func(b []byte) []byte { return wire.AppendSaveResult(b, r) }, err
}

func (h *handler) handleKeyed(ctx context.Context, f *wire.Frame) (func([]byte) []byte, error) {
	request, err := wire.DecodeKeyed(f.Body, &h.keyed)
	if err != nil {
		return nil, err
	}
	if f.Op != wire.OpPresent && len(h.keyed.Slots) != len(h.keyed.Hashes) {
		return nil, fmt.Errorf("%w: %s of %d hashes and %d slots", connector.ErrBadRequest, f.Op, len(h.keyed.Hashes), len(h.keyed.Slots))
	}
	switch f.Op {
	case wire.OpPresent:
		n, err := h.worker.Present(ctx, &h.keyed)
		return func(b []byte) []byte { return wire.AppendCount(b, n) }, err
	case wire.OpFetch:
		return wire.AppendEmpty, h.worker.Fetch(ctx, request, &h.keyed)
	default:
		r, err := h.worker.Put(ctx, &h.keyed)
		return func(b []byte) []byte { return wire.AppendSaveResult(b, r) }, err
	}
}
