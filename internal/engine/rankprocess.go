package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// What a rank's process is asked to do.
const (
	rankStart   = "start"
	rankConnect = "connect"
	rankLoad    = "load"
	rankSave    = "save"
	rankPoll    = "poll"
	rankCancel  = "cancel"
	rankQuit    = "quit"
)

// rankCall is one call to a rank's process: a JSON object on a socket, answered by a
// rankAnswer. With the answer to the first, start, comes the descriptor of the memory.
type rankCall struct {
	Do       string
	Shard    *shard                  `json:",omitempty"`
	Client   *client.Options         `json:",omitempty"`
	Metadata []byte                  `json:",omitempty"`
	Loads    []connector.PlannedLoad `json:",omitempty"`
	Request  string                  `json:",omitempty"`
}

type rankAnswer struct {
	Error    string                   `json:",omitempty"`
	Finished []connector.FinishedLoad `json:",omitempty"`
}

// processRank is a rank in a process of its own.
type processRank struct {
	cmd     *exec.Cmd
	conn    *net.UnixConn
	enc     *json.Encoder
	dec     *json.Decoder
	timeout time.Duration
	memory  *memory
	quit    bool
}

// startRank starts the process of a rank and maps the memory that it makes.
func startRank(command []string, timeout time.Duration, s shard) (*processRank, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for rank %d: %w", s.Rank, err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "rank")
	conn, err := unixConn(os.NewFile(uintptr(pair[0]), "rank"))
	if err != nil {
		_ = theirs.Close()
		return nil, err
	}
	r := &processRank{cmd: exec.Command(command[0], command[1:]...), conn: conn, enc: json.NewEncoder(conn), timeout: timeout}
	r.cmd.Stdin, r.cmd.Stderr = theirs, os.Stderr
	err = r.cmd.Start()
	_ = theirs.Close() // while it is open here, a rank that has died does not show
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start rank %d: %w", s.Rank, err)
	}
	if err := r.receiveMemory(s); err != nil {
		return nil, errors.Join(fmt.Errorf("start rank %d: %w", s.Rank, err), r.kill())
	}
	r.dec = json.NewDecoder(conn)
	return r, nil
}

// unixConn takes over a socket's file.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket of a rank: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("use the socket of a rank: it is no Unix socket")
	}
	return conn, nil
}

// receiveMemory has the rank make its memory.
func (r *processRank) receiveMemory(s shard) error {
	if err := r.conn.SetDeadline(time.Now().Add(r.timeout)); err != nil {
		return err
	}
	if err := r.enc.Encode(rankCall{Do: rankStart, Shard: &s}); err != nil {
		return err
	}
	answer, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(answer, oob)
	if err != nil {
		return err
	}
	var a rankAnswer
	if err := json.Unmarshal(answer[:n], &a); err != nil || a.Error != "" {
		return fmt.Errorf("rank answers %q: %w", answer[:n], errors.Join(err, ErrRank))
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("rank sends no memory"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	unix.CloseOnExec(fds[0])
	r.memory, err = openMemory(s, os.NewFile(uintptr(fds[0]), "kvconn-engine"))
	return err
}

func (r *processRank) call(ctx context.Context, c *rankCall) (a rankAnswer, err error) {
	deadline := time.Now().Add(r.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err = r.conn.SetDeadline(deadline); err == nil {
		err = r.enc.Encode(c)
	}
	if err == nil {
		err = r.dec.Decode(&a)
	}
	if err != nil {
		return a, fmt.Errorf("%w: %s: %w", ErrRank, c.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s", c.Do, a.Error)
	}
	return a, nil
}

func (r *processRank) connect(ctx context.Context, o client.Options) error {
	o.Logger = nil
	_, err := r.call(ctx, &rankCall{Do: rankConnect, Client: &o})
	return err
}

func (r *processRank) load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) error {
	_, err := r.call(ctx, &rankCall{Do: rankLoad, Metadata: metadata, Loads: loads})
	return err
}

func (r *processRank) save(ctx context.Context, metadata []byte) error {
	_, err := r.call(ctx, &rankCall{Do: rankSave, Metadata: metadata})
	return err
}

func (r *processRank) poll(ctx context.Context) ([]connector.FinishedLoad, error) {
	a, err := r.call(ctx, &rankCall{Do: rankPoll})
	return a.Finished, err
}

func (r *processRank) cancel(ctx context.Context, request string) error {
	_, err := r.call(ctx, &rankCall{Do: rankCancel, Request: request})
	return err
}

// close ends the process; one that does not end by itself is killed.
func (r *processRank) close() error {
	if r.quit {
		return nil
	}
	r.quit = true
	if _, err := r.call(context.Background(), &rankCall{Do: rankQuit}); err != nil {
		_ = r.kill() // it is dead already, or about to be
		return nil
	}
	_ = r.conn.Close()
	if err := r.cmd.Wait(); err != nil {
		return fmt.Errorf("end a rank: %w", err)
	}
	return nil
}

func (r *processRank) kill() error {
	_ = r.conn.Close()
	_ = r.cmd.Process.Kill()
	return r.cmd.Wait()
}
