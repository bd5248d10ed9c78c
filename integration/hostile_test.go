package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/engine"
)

// stranger is a connection without a client.
type stranger struct {
	t    *testing.T
	raw  *net.UnixConn
	conn *wire.Conn
}

func dial(t *testing.T, n *node) *stranger {
	t.Helper()
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: n.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &stranger{t, raw, wire.NewConn(raw)}
	t.Cleanup(func() { _ = s.conn.Close() })
	if err := s.conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	return s
}

// hello greets as a role of an engine.
func (s *stranger) hello(role string, lowest, highest int) wire.Frame {
	s.t.Helper()
	e := newInstance(s.t, nil, nil)
	defer e.close()
	m := e.Manifest()
	h := wire.Hello{MinVersion: lowest, MaxVersion: highest, Role: role, Client: "stranger", Engine: fmt.Sprintf("stranger %p", s), Manifest: m.Canonical()}
	if err := s.conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, h.Append); err != nil {
		s.t.Fatal(err)
	}
	f, err := s.conn.Read()
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// refused checks that the daemon ends the connection, with an error of that code where it
// still answers.
func (s *stranger) refused(code string) {
	s.t.Helper()
	for {
		f, err := s.conn.Read()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				s.t.Error("the connection stays open")
			}
			return
		}
		var body wire.ErrorBody
		if err := body.Decode(f.Body); f.Kind == wire.KindError && (err != nil || body.Code != code) {
			s.t.Errorf("error %+v, %v; want code %s", body, err, code)
		}
	}
}

// frame is a header with the given length, and a body.
func frame(length uint32, op wire.Op, kind, fds byte, body ...byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, length)
	b = binary.LittleEndian.AppendUint32(b, 7)
	b = append(b, byte(op), kind, fds, 0)
	return append(binary.LittleEndian.AppendUint64(b, 0), body...)
}

// withEngine runs a test while an engine uses the daemon, which must not notice anything.
func withEngine(t *testing.T, n *node, test func()) {
	t.Helper()
	ps := prompts(120, 3)
	want := reference(t, nil, ps)
	e := newInstance(t, n, nil)
	same(t, "before", e.run("before", ps), want)
	n.saved()
	pid := n.status().PID
	test()
	got := e.run("after", ps)
	same(t, "after", got, want)
	for k, r := range got {
		if all := whole(ps[k], 8); r.CachedTokens != all {
			t.Errorf("prompt %d: %d tokens from the cache, want %d: an engine was hurt by a stranger", k, r.CachedTokens, all)
		}
	}
	if s := n.status(); s.PID != pid || strings.Contains(n.log.String(), "panic") {
		t.Error("the daemon is another one, or has panicked")
	}
	e.close()
	n.waitLetGo()
}

func TestHostileFramesHurtNobodyElse(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	cut := frame(1000, wire.OpMatch, 0, 0, 1, 2, 3)
	withEngine(t, n, func() {
		for name, x := range map[string]struct {
			role string // "" sends before hello
			send []byte
		}{
			"another protocol":               {"", []byte("GET / HTTP/1.1\r\nHost: kvconnd\r\n\r\n")},
			"length of 4 GiB":                {"", frame(1<<32-1, wire.OpHello, 0, 0)},
			"length above the bound":         {wire.RoleScheduler, frame(wire.MaxBodyBytes+1, wire.OpMatch, 0, 0)},
			"unknown operation":              {wire.RoleScheduler, frame(0, 200, 0, 0)},
			"unknown kind":                   {wire.RoleScheduler, frame(0, wire.OpMatch, 9, 0)},
			"answer from a client":           {wire.RoleScheduler, frame(1, wire.OpMatch, 1, 0, 0x80)},
			"request before hello":           {"", frame(1, wire.OpMatch, 0, 0, 0x80)},
			"body that is no map":            {wire.RoleScheduler, frame(1, wire.OpStep, 0, 0, 0xc1)},
			"operation of the other role":    {wire.RoleWorker, frame(1, wire.OpMatch, 0, 0, 0x80)},
			"descriptors that are missing":   {wire.RoleWorker, frame(1, wire.OpRegister, 0, 2, 0x80)},
			"descriptors that do not belong": {wire.RoleWorker, frame(1, wire.OpPoll, 0, 3, 0x80)},
			"too many descriptors":           {wire.RoleWorker, frame(1, wire.OpRegister, 0, wire.MaxFDs+1, 0x80)},
		} {
			t.Run(name, func(t *testing.T) {
				s := dial(t, n)
				if x.role != "" {
					s.hello(x.role, wire.MinVersion, wire.MaxVersion)
				}
				if _, err := s.raw.Write(x.send); err != nil {
					t.Fatal(err)
				}
				_ = s.raw.CloseWrite() // what is missing never comes
				s.refused(wire.CodeProtocol)
			})
		}
		// Strangers that announce much and send nothing cost next to no memory.
		before := residentBytes(t, n.cmd.Process.Pid)
		for range 100 {
			s := dial(t, n)
			s.hello(wire.RoleScheduler, wire.MinVersion, wire.MaxVersion)
			if _, err := s.raw.Write(append(frame(wire.MaxBodyBytes, wire.OpMatch, 0, 0), cut[20:]...)); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.raw.Close() }()
		}
		if grown := residentBytes(t, n.cmd.Process.Pid) - before; grown > 100*wire.MaxBodyBytes/4 {
			t.Errorf("the daemon has grown by %d bytes for frames that were announced", grown)
		}
	})
}

func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// Frames of every operation with bytes changed at random, and plans that nobody has made:
// the answer is an error or the connection's end.
func TestMutatedFramesAndPlansHurtNobodyElse(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../connector/testdata/frames/*request*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	plan, err := filepath.Glob("../connector/testdata/frames/plan*")
	if err != nil || len(plan) == 0 {
		t.Fatalf("no plan: %v", err)
	}
	random := rand.New(rand.NewPCG(8, 9))
	n := newMemoryNode(t)
	n.start()
	withEngine(t, n, func() {
		for round := range rounds(60, 2000) {
			s := dial(t, n)
			s.hello([]string{wire.RoleScheduler, wire.RoleWorker}[round%2], wire.MinVersion, wire.MaxVersion)
			var b []byte
			if round%4 == 1 {
				meta, err := os.ReadFile(plan[0])
				if err != nil {
					t.Fatal(err)
				}
				mutate(random, meta)
				body := wire.AppendMeta(nil, meta)
				b = frame(uint32(len(body)), []wire.Op{wire.OpLoad, wire.OpSave}[random.IntN(2)], 0, 0, body...)
			} else {
				if b, err = os.ReadFile(files[random.IntN(len(files))]); err != nil {
					t.Fatal(err)
				}
				mutate(random, b)
			}
			if _, err := s.raw.Write(b); err != nil {
				t.Fatal(err)
			}
			_ = s.raw.CloseWrite()
			for err = nil; err == nil; _, err = s.conn.Read() {
			}
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatalf("round %d: the daemon hangs", round)
			}
			_ = s.conn.Close()
		}
	})
}

// mutate changes up to four bytes.
func mutate(random *rand.Rand, b []byte) {
	for range 1 + random.IntN(4) {
		b[random.IntN(len(b))] = byte(random.Uint32())
	}
}

func TestVersionsThatDoNotMeetAreAClearErrorAtBothEnds(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	withEngine(t, n, func() {
		s := dial(t, n)
		f := s.hello(wire.RoleScheduler, wire.MaxVersion+1, wire.MaxVersion+3)
		var body wire.ErrorBody
		if err := body.Decode(f.Body); f.Kind != wire.KindError || err != nil || body.Code != wire.CodeVersion ||
			!strings.Contains(body.Message, fmt.Sprintf("%d to %d,", wire.MaxVersion+1, wire.MaxVersion+3)) ||
			!strings.Contains(body.Message, fmt.Sprintf("%d to %d:", wire.MinVersion, wire.MaxVersion)) {
			t.Errorf("a newer client is told %+v, %v", body, err)
		}
		s.refused(wire.CodeVersion)
		// One that still speaks this version is served in it.
		s = dial(t, n)
		f = s.hello(wire.RoleScheduler, wire.MinVersion, wire.MaxVersion+3)
		var reply wire.HelloReply
		if err := reply.Decode(f.Body); f.Kind != wire.KindReply || err != nil || reply.Version != wire.MaxVersion {
			t.Errorf("a newer client that speaks this version is told %+v, %v", reply, err)
		}
		_ = s.conn.Close()
	})
	// A daemon of a version to come, for a client of this one.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket + "2", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(c)
			if f, err := conn.Read(); err == nil {
				_ = conn.Write(wire.Header{ID: f.ID, Op: f.Op, Kind: wire.KindReply, Epoch: 9}, func(b []byte) []byte {
					b = msgp.AppendInt(msgp.AppendString(msgp.AppendMapHeader(b, 2), "version"), wire.MaxVersion+1)
					return msgp.AppendString(msgp.AppendString(b, "server"), "kvconnd/next")
				})
			}
			_ = conn.Close()
		}
	}()
	ps := prompts(121, 2)
	e := newInstanceWith(t, nil, setup{})
	s, err := client.NewScheduler(client.Options{Socket: n.socket + "2", Engine: "e", Manifest: e.Manifest()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Connect(t.Context()); !errors.Is(err, connector.ErrVersion) || !strings.Contains(err.Error(), "kvconnd/next") {
		t.Errorf("Connect = %v, want ErrVersion with the daemon's name", err)
	}
	for _, v := range []variant{{"vLLM", nil}, {"TensorRT-LLM", func(o *engine.Options) { tensorRT(o) }}} {
		e := newInstanceWith(t, n, setup{engine: v.change, client: func(o *client.Options) { o.Socket = n.socket + "2" }})
		same(t, v.name, e.run("run", ps), reference(t, v.change, ps))
	}
}
