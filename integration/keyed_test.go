package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

const (
	keyedSlots = 256
	keyedBytes = 4096
	// keyedWindow is a window in blocks.
	keyedWindow = 2
)

// keyedEngine is an engine that brings its own keys, with a group of full attention and one with a
// window, whose slots lie one after the other.
type keyedEngine struct {
	t      *testing.T
	n      *node
	w      *client.Worker
	memory []byte
	file   *os.File
	moves  int
}

func keyedManifest() *connector.Manifest {
	return manifests.New(func(m *connector.Manifest) {
		m.KeyScheme = connector.KeySchemeEngine
		m.Groups = append(m.Groups, m.Groups[0])
		m.Groups[1].Window = keyedWindow * m.BlockSize
	})
}

func newKeyedEngine(t *testing.T, n *node) *keyedEngine {
	t.Helper()
	const size = 2 * keyedSlots * keyedBytes
	e := &keyedEngine{t: t, n: n, file: memfd.New(t, size)}
	var err error
	if e.memory, err = unix.Mmap(int(e.file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(e.memory) })
	var layout connector.Layout
	for g := range uint64(2) {
		layout.Groups = append(layout.Groups, connector.GroupLayout{Blocks: keyedSlots, Runs: []connector.Run{
			{Offset: g * keyedSlots * keyedBytes, Layers: 1, BlockStride: keyedBytes, Bytes: keyedBytes},
		}})
	}
	o := client.Options{Socket: n.socket, Engine: "keyed", Manifest: *keyedManifest(), CallTimeout: waitLimit, RetryInterval: time.Millisecond}
	if e.w, err = client.NewWorker(o, 0, layout, []*os.File{e.file}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.w.Close)
	if err := e.w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// promptHashes are those of the blocks of a prompt.
func promptHashes(prompt, blocks int) []connector.Proof {
	out := make([]connector.Proof, blocks)
	var last connector.Proof
	for i := range out {
		last = sha256.Sum256(binary.LittleEndian.AppendUint64(last[:], uint64(prompt)))
		out[i] = last
	}
	return out
}

// slot is the memory of a group's slot, content what a block of a group holds.
func (e *keyedEngine) slot(group int, slot uint32) []byte {
	at := (group*keyedSlots + int(slot)) * keyedBytes
	return e.memory[at : at+keyedBytes]
}

func content(group int, hash connector.Proof) []byte {
	sum := sha256.Sum256(append(hash[:], byte(group)))
	return bytes.Repeat(sum[:], keyedBytes/len(sum))
}

// parts are blocks [first, end) of a prompt in both groups, in slots from the given one on.
func parts(hashes []connector.Proof, first, end int, slot uint32) []connector.KeyedPart {
	var out []connector.KeyedPart
	for g := range 2 {
		p := connector.KeyedPart{Group: g, Hashes: hashes[first:end]}
		if first > 0 {
			p.Parent = hashes[first-1]
		}
		for i := range p.Hashes {
			p.Slots = append(p.Slots, slot+uint32(i))
		}
		out = append(out, p)
	}
	return out
}

// id is that of a new load or save.
func (e *keyedEngine) id() string {
	e.moves++
	return fmt.Sprint(e.moves)
}

// put saves blocks, which it computes first, and waits for the report.
func (e *keyedEngine) put(hashes []connector.Proof, first, end int) connector.SaveResult {
	e.t.Helper()
	m := connector.KeyedMove{ID: e.id(), Parts: parts(hashes, first, end, 0)}
	for _, p := range m.Parts {
		for i, slot := range p.Slots {
			copy(e.slot(p.Group, slot), content(p.Group, p.Hashes[i]))
		}
	}
	e.w.Put(e.t.Context(), &m)
	r := e.stored(m.ID)
	e.n.saved() // the writes come after the copies
	return r
}

// stored waits for the report of a save, the only one under way.
func (e *keyedEngine) stored(id string) connector.SaveResult {
	e.t.Helper()
	r := onlyReport(e, func() []connector.StoredPut {
		e.w.Poll(e.t.Context())
		return e.w.Stored()
	})
	if r.ID != id {
		e.t.Fatalf("save %q is reported, want %q", r.ID, id)
	}
	return r.SaveResult
}

// finished waits for the report of a load, the only one under way, and returns the failed slots.
func (e *keyedEngine) finished(id string) (failed []uint32) {
	e.t.Helper()
	r := onlyReport(e, func() []connector.FinishedLoad { return e.w.Poll(e.t.Context()) })
	if r.Request != id {
		e.t.Fatalf("load %q is reported, want %q", r.Request, id)
	}
	return r.FailedBlocks
}

// onlyReport polls until something is reported, and returns it. More than one report is an error.
func onlyReport[T any](e *keyedEngine, poll func() []T) (r T) {
	e.t.Helper()
	e.n.wait("the report", func() bool {
		ended := poll()
		if len(ended) > 1 {
			e.t.Fatalf("%+v are reported, want one", ended)
		}
		if len(ended) == 1 {
			r = ended[0]
		}
		return len(ended) == 1
	})
	return r
}

// offered returns how many leading blocks are offered, of the window those that they need.
func (e *keyedEngine) offered(request string, hashes []connector.Proof) int {
	e.t.Helper()
	groups := e.w.Present(e.t.Context(), &connector.PresentRequest{Request: request, Hashes: hashes})
	if groups == nil {
		return 0
	}
	bit := func(g, i int) bool { return groups[g][i/8]>>(i%8)&1 == 1 }
	n := 0
	for n < len(hashes) && bit(0, n) {
		n++
	}
	for i := max(0, n-keyedWindow+1); i < n; i++ {
		if !bit(1, i) {
			e.t.Errorf("block %d of the window is not offered, which %d blocks need", i, n)
		}
	}
	return n
}

// fetch loads blocks [0, end), and checks that those have the right bytes which have not failed. It
// returns how many failed.
func (e *keyedEngine) fetch(request string, hashes []connector.Proof, end int) int {
	e.t.Helper()
	const slot = 100
	m := connector.KeyedMove{ID: e.id(), Request: request, Parts: parts(hashes, 0, end, slot)}
	for _, p := range m.Parts {
		for _, slot := range p.Slots {
			clear(e.slot(p.Group, slot))
		}
	}
	e.w.Fetch(e.t.Context(), &m)
	failed := e.finished(m.ID)
	for _, p := range m.Parts {
		for i, slot := range p.Slots {
			if !slices.Contains(failed, slot) && !bytes.Equal(e.slot(p.Group, slot), content(p.Group, p.Hashes[i])) {
				e.t.Errorf("block %d of group %d has other bytes", i, p.Group)
			}
		}
	}
	return len(failed)
}

func TestKeysOfTheEngineOutliveItAndTheDaemon(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	e := newKeyedEngine(t, n)
	prompt := promptHashes(1, 90)
	if r := e.put(prompt, 0, 40); r.Taken != 80 {
		t.Fatalf("%+v", r)
	}
	if r := e.put(prompt, 30, 60); r.Taken != 40 || r.Present != 20 {
		t.Fatalf("%+v", r)
	}
	if got := e.offered("a", prompt); got != 60 {
		t.Errorf("%d blocks are offered, want 60", got)
	}
	s := n.status()
	if len(s.Engines) != 1 || len(s.Ranks) != 1 || s.Engines[0].Engine != "keyed" || s.Engines[0].Requests.QueriedTokens != 90*16 ||
		s.Engines[0].Requests.OfferedTokens != 60*16 || s.Engines[0].Requests.SaveBlocks != 140 || s.Engines[0].NotReady != "" {
		t.Errorf("%+v", s.Engines)
	}
	if failed := e.fetch("a", prompt, 60); failed != 0 {
		t.Errorf("%d blocks failed", failed)
	}
	e.w.Touch(t.Context(), &connector.TouchRequest{Request: "a", Hashes: prompt, Tokens: 480, Seconds: 0.1})
	if s := n.status(); s.Engines[0].Requests.Requests != 0 || s.Store.Leases != 0 {
		t.Errorf("%+v, %d leases after the request's end", s.Engines[0].Requests, s.Store.Leases)
	}
	n.stop()
	n.start()
	if got := e.offered("b", prompt); got != 60 { // over a connection of its own
		t.Errorf("%d blocks are offered after a restart, want 60", got)
	}
	if failed := e.fetch("b", prompt, 60); failed != 0 {
		t.Errorf("%d blocks failed after a restart", failed)
	}
	e.w.Close()
	n.waitLetGo()
}

// Whatever was damaged, a load brings the right bytes or says which it does not bring, and the request
// is offered nothing more.
func TestFlippedBitsFailLoadsByKey(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	e := newKeyedEngine(t, n)
	prompt := promptHashes(1, 60)
	e.put(prompt, 0, 60)
	n.stop()
	flipPayloads(t, n.dir, rand.New(rand.NewPCG(1, 2)))
	n.start()
	if got := e.offered("a", prompt); got != 60 {
		t.Errorf("%d blocks are offered, want 60", got)
	}
	if failed := e.fetch("a", prompt, 60); failed == 0 {
		t.Error("no block failed")
	}
	if got := e.offered("a", prompt); got != 0 {
		t.Errorf("%d blocks are offered to a request whose load failed", got)
	}
	if s := n.status(); s.Engines[0].Requests.FailedLoads != 1 {
		t.Errorf("%+v", s.Engines[0].Requests)
	}
	e.w.Touch(t.Context(), &connector.TouchRequest{Request: "a"})
	if got := e.offered("a", prompt); got == 60 {
		t.Error("what was found damaged is offered again")
	}
}

// A daemon that is killed ends every load and every save once, and touches nothing afterwards.
func TestKilledDaemonEndsLoadsAndSavesByKey(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	e := newKeyedEngine(t, n)
	prompt := promptHashes(1, 60)
	e.put(prompt, 0, 60)
	for round := range rounds(4, 30) {
		load := connector.KeyedMove{ID: e.id(), Parts: parts(prompt, 0, 60, 100)}
		save := connector.KeyedMove{ID: load.ID, Parts: parts(promptHashes(2+round, 60), 0, 60, 0)}
		e.w.Fetch(t.Context(), &load)
		e.w.Put(t.Context(), &save)
		n.kill()
		failed, dropped := -1, -1
		e.n.wait("both reports", func() bool {
			for _, l := range e.w.Poll(t.Context()) {
				if l.Request != load.ID || failed >= 0 {
					t.Fatalf("%+v is reported", l)
				}
				failed = len(l.FailedBlocks)
			}
			for _, s := range e.w.Stored() {
				if s.ID != save.ID || dropped >= 0 {
					t.Fatalf("%+v is reported", s)
				}
				dropped = s.Dropped
			}
			return failed >= 0 && dropped >= 0
		})
		if failed != 120 && failed != 0 || dropped != 120 && dropped != 0 {
			t.Errorf("%d of 120 blocks failed, %d were dropped: all or none", failed, dropped)
		}
		n.start()
	}
	if got := e.offered("a", prompt); got > 0 {
		if failed := e.fetch("a", prompt, got); failed != 0 {
			t.Errorf("%d blocks failed", failed)
		}
	}
}

// helloKeyed greets as a rank of an engine that brings its own keys.
func (s *stranger) helloKeyed(highest int) {
	s.t.Helper()
	h := wire.Hello{
		MinVersion: wire.MinVersion, MaxVersion: highest, Role: wire.RoleWorker, Client: "stranger",
		Engine: "stranger", Manifest: keyedManifest().Canonical(),
	}
	if err := s.conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, h.Append); err != nil {
		s.t.Fatal(err)
	}
	if f, err := s.conn.Read(); err != nil || f.Kind != wire.KindReply {
		s.t.Fatalf("hello: %+v, %v", f.Header, err)
	}
}

func TestHostileCallsByKeyHurtNobodyElse(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	many := &connector.PresentRequest{Request: "r", Hashes: make([]connector.Proof, connector.MaxKeyedBlocks)}
	tooMany := &connector.PresentRequest{Request: "r", Hashes: make([]connector.Proof, connector.MaxKeyedBlocks+1)}
	uneven := &connector.KeyedMove{ID: "m", Parts: []connector.KeyedPart{{Hashes: make([]connector.Proof, 2), Slots: []uint32{1}}}}
	inAll := &connector.KeyedMove{ID: "m", Parts: slices.Repeat([]connector.KeyedPart{
		{Hashes: make([]connector.Proof, connector.MaxKeyedBlocks/2), Slots: make([]uint32, connector.MaxKeyedBlocks/2)},
	}, 3)}
	manyParts := &connector.KeyedMove{ID: "m", Parts: make([]connector.KeyedPart, connector.MaxKeyedParts+1)}
	withEngine(t, n, func() {
		for name, x := range map[string]struct {
			op   wire.Op
			body []byte
			code string
			open bool // the connection stays
		}{
			"as many hashes as may be":      {wire.OpPresent, wire.AppendPresent(nil, many), "", true},
			"too many hashes":               {wire.OpPresent, wire.AppendPresent(nil, tooMany), wire.CodeProtocol, false},
			"too many hashes of all parts":  {wire.OpFetch, wire.AppendMove(nil, inAll), wire.CodeProtocol, false},
			"too many parts":                {wire.OpPut, wire.AppendMove(nil, manyParts), wire.CodeProtocol, false},
			"hashes and slots that differ":  {wire.OpPut, wire.AppendMove(nil, uneven), wire.CodeProtocol, false},
			"a load without memory":         {wire.OpFetch, wire.AppendMove(nil, &connector.KeyedMove{ID: "m"}), wire.CodeNotRegistered, true},
			"a save without memory":         {wire.OpPut, wire.AppendMove(nil, &connector.KeyedMove{ID: "m"}), wire.CodeNotRegistered, true},
			"a time that is none":           {wire.OpTouch, wire.AppendTouch(nil, &connector.TouchRequest{Seconds: -1}), wire.CodeProtocol, false},
			"a touch of what nobody has":    {wire.OpTouch, wire.AppendTouch(nil, &connector.TouchRequest{Hashes: many.Hashes}), "", true},
			"a call that is not of the op":  {wire.OpTouch, wire.AppendTouch(nil, &connector.TouchRequest{})[:3], wire.CodeProtocol, false},
			"an operation of the scheduler": {wire.OpMatch, []byte{0x80}, wire.CodeProtocol, false},
		} {
			t.Run(name, func(t *testing.T) {
				s := dial(t, n)
				s.helloKeyed(wire.MaxVersion)
				s.call(x.op, x.body, x.code)
				if x.open {
					s.call(wire.OpPoll, wire.AppendEmpty(nil), "")
				} else {
					s.refused(x.code)
				}
			})
		}
		t.Run("of an older version", func(t *testing.T) {
			s := dial(t, n)
			s.helloKeyed(wire.MinKeyedVersion - 1)
			s.call(wire.OpPresent, wire.AppendPresent(nil, &connector.PresentRequest{}), wire.CodeVersion)
			s.refused(wire.CodeVersion)
		})
		t.Run("of an engine without keys", func(t *testing.T) {
			for op, body := range map[wire.Op][]byte{
				wire.OpPresent: wire.AppendPresent(nil, &connector.PresentRequest{}),
				wire.OpFetch:   wire.AppendMove(nil, &connector.KeyedMove{}),
				wire.OpPut:     wire.AppendMove(nil, &connector.KeyedMove{}),
				wire.OpTouch:   wire.AppendTouch(nil, &connector.TouchRequest{}),
			} {
				s := dial(t, n)
				s.hello(wire.RoleWorker, wire.MinVersion, wire.MaxVersion)
				s.call(op, body, wire.CodeBadRequest)
			}
		})
	})
}

// call makes a request and checks that its answer has an error of that code, or none if it is "".
func (s *stranger) call(op wire.Op, body []byte, code string) {
	s.t.Helper()
	if err := s.conn.Write(wire.Header{ID: 2, Op: op}, func(b []byte) []byte { return append(b, body...) }); err != nil {
		s.t.Fatal(err)
	}
	f, err := s.conn.Read()
	if err != nil {
		s.t.Fatal(err)
	}
	var e wire.ErrorBody
	if f.Kind == wire.KindError {
		if err := e.Decode(f.Body); err != nil {
			s.t.Fatal(err)
		}
	}
	if e.Code != code {
		s.t.Errorf("%s is answered with %+v, want code %q", op, e, code)
	}
}

// Slots that are named twice, or are not there, are refused or fail alone, and an id is used once.
func TestWrongSlotsFailAlone(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	e := newKeyedEngine(t, n)
	prompt := promptHashes(1, 4)
	e.put(prompt, 0, 4)
	twice := connector.KeyedMove{ID: e.id(), Parts: []connector.KeyedPart{{Hashes: prompt[:2], Slots: []uint32{9, 9}}}}
	e.w.Fetch(t.Context(), &twice)
	if failed := e.finished(twice.ID); len(failed) != 2 {
		t.Errorf("slots %v failed, want both", failed)
	}
	e.w.Put(t.Context(), &twice)
	if r := e.stored(twice.ID); r.Dropped != 2 {
		t.Errorf("%+v, want both dropped", r)
	}
	beyond := connector.KeyedMove{ID: e.id(), Parts: []connector.KeyedPart{{Hashes: prompt[:3], Slots: []uint32{1, 3, keyedSlots}}}}
	e.w.Fetch(t.Context(), &beyond)
	if failed := e.finished(beyond.ID); !slices.Equal(failed, []uint32{keyedSlots}) {
		t.Errorf("slots %v failed, want %d", failed, keyedSlots)
	}
	if !bytes.Equal(e.slot(0, 3), content(0, prompt[1])) {
		t.Error("the block before it has other bytes")
	}
}
