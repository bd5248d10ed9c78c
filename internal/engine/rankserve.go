package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// ConnectFunc makes the connector's end of a rank whose memory lies in regions as layout
// says. If the result has a method Close, it is called at the end.
type ConnectFunc func(ctx context.Context, o client.Options, rank int, layout connector.Layout, regions []*os.File) (WorkerConnector, error)

// connectClient is the ConnectFunc of a daemon's client. The daemon need not be there yet.
func connectClient(ctx context.Context, o client.Options, rank int, layout connector.Layout, regions []*os.File) (WorkerConnector, error) {
	w, err := NewWorkerClient(o, rank, layout, regions)
	if err != nil {
		return nil, err
	}
	// It connects again by itself; why it could not is logged.
	_ = w.Connect(ctx)
	return w, nil
}

// rankServer is the state of a rank's process.
type rankServer struct {
	conn    *net.UnixConn
	enc     *json.Encoder
	connect ConnectFunc
	memory  *memory
	rank    rank
}

// RunRank is the body of a rank's process, see [Options.RankCommand]: it owns the memory
// of its shard and its own connection to the daemon, and does what the engine's process
// says over the socket that it has as standard input. It returns when that process says
// so, is gone, or ctx ends. connect is nil for kvconn's own client.
func RunRank(ctx context.Context, stdin *os.File, connect ConnectFunc) (err error) {
	if connect == nil {
		connect = connectClient
	}
	conn, err := unixConn(stdin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	s := &rankServer{conn: conn, enc: json.NewEncoder(conn), connect: connect, rank: localRank{noConnector{}}}
	defer func() {
		err = errors.Join(err, s.rank.close())
		if s.memory != nil {
			err = errors.Join(err, s.memory.close())
		}
	}()
	dec := json.NewDecoder(conn)
	for {
		var c rankCall
		if err := dec.Decode(&c); errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("rank: read a call: %w", err)
		}
		if err := s.serve(ctx, &c); err != nil {
			return fmt.Errorf("rank: %s: %w", c.Do, err)
		}
		if c.Do == rankQuit {
			return nil
		}
	}
}

// serve answers one call. What it returns is an end, not an answer.
func (s *rankServer) serve(ctx context.Context, c *rankCall) (err error) {
	var a rankAnswer
	switch c.Do {
	case rankStart:
		return s.start(*c.Shard)
	case rankConnect:
		var w WorkerConnector
		sh := &s.memory.shard
		if w, err = s.connect(ctx, *c.Client, sh.Rank, sh.layout(), []*os.File{s.memory.file}); err == nil {
			s.rank = localRank{w}
		}
	case rankLoad:
		err = s.rank.load(ctx, c.Metadata, c.Loads)
	case rankSave:
		err = s.rank.save(ctx, c.Metadata)
	case rankPoll:
		a.Finished, err = s.rank.poll(ctx)
	case rankCancel:
		err = s.rank.cancel(ctx, c.Request)
	case rankQuit:
	default:
		err = errors.New("no such call")
	}
	if err != nil {
		a.Error = err.Error()
	}
	return s.enc.Encode(a)
}

// start makes the memory and sends its descriptor.
func (s *rankServer) start(sh shard) (err error) {
	if s.memory, err = newMemory(sh); err != nil {
		return err
	}
	_, _, err = s.conn.WriteMsgUnix([]byte("{}\n"), unix.UnixRights(int(s.memory.file.Fd())), nil)
	return err
}
