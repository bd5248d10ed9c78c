package server

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// handler turns the frames of one connection into calls on its session. Exactly one of
// scheduler and worker is set. What it decodes into is used again: the hot calls cost no
// allocation.
type handler struct {
	namespace connector.NamespaceDigest
	version   int
	scheduler Scheduler
	worker    Worker
	// session is the worker's if it may have channels, or the one that this is a channel of; channel
	// says which.
	session *session
	channel bool
	// maxWait bounds the calls that wait.
	maxWait time.Duration
	conn    *wire.Conn
	match   connector.MatchRequest
	step    wire.StepDecoder
	present connector.PresentRequest
	bits    [][]byte // of the answer to present
	move    wire.MoveDecoder
	touch   connector.TouchRequest
	// files go along with the answer being made; they stay the session's.
	files []*os.File
}

// hello checks the first frame and opens the session. It fills in what the frame says of
// the peer. end ends ctx, and with it the connection's calls.
func (s *Server) hello(ctx context.Context, end context.CancelFunc, conn *wire.Conn, f *wire.Frame, peer *Peer) (*handler, error) {
	defer f.CloseFiles()
	if f.Op != wire.OpHello || f.Kind != wire.KindRequest {
		return nil, fmt.Errorf("%w: %s before hello", connector.ErrProtocol, f.Op)
	}
	// The version first: another version's hello need not decode.
	lowest, highest, err := wire.DecodeVersions(f.Body)
	if err != nil {
		return nil, err
	}
	version, err := wire.Negotiate(lowest, highest)
	if err != nil {
		return nil, err
	}
	var m wire.Hello
	if err := m.Decode(f.Body); err != nil {
		return nil, err
	}
	if m.Handoff {
		if err := wire.CheckHandoff(lowest, highest); err != nil {
			return nil, err
		}
	}
	peer.Client, peer.Engine, peer.Handoff = m.Client, m.Engine, m.Handoff
	h := &handler{version: version, conn: conn, maxWait: s.opts.LoadTimeout}
	if m.Role == wire.RoleChannel {
		return h, s.openChannel(&m, *peer, h, end)
	}
	manifest, err := connector.ParseManifest(m.Manifest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
	}
	if m.Engine == "" {
		return nil, fmt.Errorf("%w: engine id is empty", connector.ErrBadRequest)
	}
	if err := s.admission.greet(conn, m.Engine, manifest.Ranks()); err != nil {
		return nil, err
	}
	h.namespace = manifest.Digest()
	switch m.Role {
	case wire.RoleScheduler:
		h.scheduler, err = s.backend.OpenScheduler(ctx, *peer, manifest)
	case wire.RoleWorker:
		if m.Rank >= manifest.Ranks() {
			return nil, fmt.Errorf("%w: rank %d of a manifest with %d", connector.ErrBadRequest, m.Rank, manifest.Ranks())
		}
		h.worker, err = s.backend.OpenWorker(ctx, *peer, manifest, m.Rank)
		if err == nil && version >= wire.MinChannelVersion && manifest.KeyScheme == connector.KeySchemeEngine {
			h.session = s.sessions.open(*peer, manifest, m.Rank, h.worker)
		}
	default:
		return nil, fmt.Errorf("%w: role %q, want %q, %q or %q", connector.ErrBadRequest, m.Role,
			wire.RoleScheduler, wire.RoleWorker, wire.RoleChannel)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// openChannel makes h the handler of a channel.
func (s *Server) openChannel(m *wire.Hello, peer Peer, h *handler, end context.CancelFunc) error {
	if h.version < wire.MinChannelVersion {
		return fmt.Errorf("%w: channels need protocol %d, this client speaks %d: update the engine's connector",
			connector.ErrVersion, wire.MinChannelVersion, h.version)
	}
	x, err := s.sessions.find(m, peer)
	if err != nil {
		return err
	}
	if err := s.admission.greet(h.conn, x.peer.Engine, x.ranks); err != nil {
		return err
	}
	h.namespace, h.worker, h.session, h.channel = x.namespace, x.worker, x, true
	return x.join(h.conn, end)
}

// closeHandler ends what the connection had opened. A session's channels go first: no call may follow its
// Close.
func (s *Server) closeHandler(h *handler) {
	switch {
	case h.channel:
		h.session.leave(h.conn)
	case h.scheduler != nil:
		h.scheduler.Close()
	default:
		if h.session != nil {
			s.sessions.close(h.session)
		}
		h.worker.Close()
	}
}

// handle answers one request: it appends the answer's body to out, and leaves in h.files
// what travels with it.
func (h *handler) handle(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	h.files = nil
	if f.Kind != wire.KindRequest {
		return out, fmt.Errorf("%w: %s frame of kind %d from a client", connector.ErrProtocol, f.Op, f.Kind)
	}
	if len(f.Files) > 0 && f.Op != wire.OpRegister {
		return out, fmt.Errorf("%w: %s frame with descriptors", connector.ErrProtocol, f.Op)
	}
	switch {
	case h.channel && f.Op < wire.OpCancel:
	case h.scheduler != nil && f.Op >= wire.OpMatch && f.Op <= wire.OpReset:
		return h.handleScheduler(ctx, f, out)
	case h.worker != nil && f.Op >= wire.OpPresent:
		return h.handleKeyed(ctx, f, out)
	case h.worker != nil && f.Op >= wire.OpRegister:
		return h.handleWorker(ctx, f, out)
	}
	return out, fmt.Errorf("%w: %s is not for this role", connector.ErrProtocol, f.Op)
}

func (h *handler) handleScheduler(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	switch f.Op {
	case wire.OpMatch:
		if err := wire.DecodeMatch(f.Body, &h.match); err != nil {
			return out, err
		}
		offer, err := h.scheduler.Match(ctx, &h.match)
		return wire.AppendOffer(out, offer), err
	case wire.OpStep:
		m, err := h.step.Decode(f.Body)
		if err != nil {
			return out, err
		}
		reply, err := h.scheduler.Step(ctx, m)
		return wire.AppendStepReply(out, &reply), err
	case wire.OpReset:
		return wire.AppendEmpty(out), h.scheduler.Reset(ctx)
	}
	var m connector.LoadedReport
	if err := wire.DecodeLoaded(f.Body, &m); err != nil {
		return out, err
	}
	return wire.AppendEmpty(out), h.scheduler.Loaded(ctx, &m)
}

// register passes the descriptors on; the last is the fence page.
func (h *handler) register(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	var r Registration
	if err := wire.DecodeLayout(f.Body, &r.Layout); err != nil {
		return out, err
	}
	if len(f.Files) < 2 {
		return out, fmt.Errorf("%w: register with %d descriptors: want those of the regions and of the fence page",
			connector.ErrBadRequest, len(f.Files))
	}
	last := len(f.Files) - 1
	r.Regions, r.Fence = f.Files[:last], f.Files[last]
	f.Files = nil // the session owns them from here
	got, err := h.worker.Register(ctx, &r)
	if err != nil {
		return out, err
	}
	if got.HostTier != nil {
		h.files = []*os.File{got.HostTier}
	}
	return wire.AppendRegisterReply(out, got.BlockBytes), nil
}

func (h *handler) handleWorker(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	switch f.Op {
	case wire.OpRegister:
		return h.register(ctx, f, out)
	case wire.OpUnregister:
		return wire.AppendEmpty(out), h.worker.Unregister(ctx)
	case wire.OpPoll:
		ended, err := h.worker.Poll(ctx)
		return wire.AppendPolled(out, &ended), err
	case wire.OpCancel:
		request, err := wire.DecodeCancel(f.Body)
		if err != nil {
			return out, err
		}
		return wire.AppendEmpty(out), h.worker.Cancel(ctx, request)
	}
	if f.Op == wire.OpSave {
		return h.save(ctx, f, out)
	}
	meta, err := wire.DecodeMeta(f.Body)
	if err != nil {
		return out, err
	}
	n, err := h.worker.Load(ctx, meta)
	return wire.AppendCount(out, n), err
}

// save makes a save: one whose end is reported later where client and memory can do that.
func (h *handler) save(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	m, err := wire.DecodeSave(f.Body)
	if err != nil {
		return out, err
	}
	if m.ID != "" {
		if later, err := h.worker.SaveLater(ctx, &m); later || err != nil {
			return wire.AppendSaveLater(out), err
		}
	}
	r, err := h.worker.Save(ctx, m.Metadata)
	return wire.AppendSaveResult(out, r), err
}

func (h *handler) handleKeyed(ctx context.Context, f *wire.Frame, out []byte) ([]byte, error) {
	if h.version < wire.MinKeyedVersion {
		return out, fmt.Errorf("%w: %s needs protocol %d, this client speaks %d: update the engine's connector",
			connector.ErrVersion, f.Op, wire.MinKeyedVersion, h.version)
	}
	switch f.Op {
	case wire.OpPresent:
		if err := wire.DecodePresent(f.Body, &h.present); err != nil {
			return out, err
		}
		bits, err := h.worker.Present(ctx, &h.present, h.bits)
		h.bits = bits
		return wire.AppendPresence(out, bits), err
	case wire.OpTouch:
		if err := wire.DecodeTouch(f.Body, &h.touch); err != nil {
			return out, err
		}
		return wire.AppendEmpty(out), h.worker.Touch(ctx, &h.touch)
	}
	m, err := h.move.Decode(f.Body)
	switch {
	case err != nil:
		return out, err
	case m.Wait > 0 && h.version >= wire.MinChannelVersion:
		return h.wait(ctx, f.Op, m, out)
	case f.Op == wire.OpFetch:
		return wire.AppendEmpty(out), h.worker.Fetch(ctx, m)
	}
	return wire.AppendEmpty(out), h.worker.Put(ctx, m)
}

// wait makes a fetch or put that is answered at its end. It ends early with the connection.
func (h *handler) wait(ctx context.Context, op wire.Op, m *connector.KeyedMove, out []byte) ([]byte, error) {
	if m.Wait > h.maxWait {
		return out, fmt.Errorf("%w: %s waits %v, at most the load timeout of %v", connector.ErrBadRequest, op, m.Wait, h.maxWait)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer h.conn.WatchClose(cancel)()
	if op == wire.OpFetch {
		r, err := h.worker.FetchWait(ctx, m)
		return wire.AppendFetched(out, &r), err
	}
	r, err := h.worker.PutWait(ctx, m)
	return wire.AppendPut(out, &r), err
}
