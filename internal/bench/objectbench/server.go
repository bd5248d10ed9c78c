package objectbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
)

const memoryBucket = "bench"

// Serve runs a server in memory that holds maxBytes, on a port of its own, until in ends. Its connections share
// linkBytesPerS in each direction, 0 for no limit. It writes its address, and its counts for each line that it
// reads, as JSON.
func Serve(ctx context.Context, maxBytes, linkBytesPerS int64, in io.Reader, out io.Writer) (err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the bench's server: %w", err)
	}
	objects := s3mem.New(s3mem.Options{MaxBytes: maxBytes}, memoryBucket)
	server := &http.Server{Handler: objects, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(newLink(l, linkBytesPerS)) }()
	defer func() {
		err = errors.Join(err, server.Close())
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
	}()
	answers := json.NewEncoder(out)
	if err := answers.Encode("http://" + l.Addr().String()); err != nil {
		return err
	}
	questions := bufio.NewScanner(in)
	for questions.Scan() {
		if err := answers.Encode(objects.Counts()); err != nil {
			return err
		}
	}
	return questions.Err()
}

// server is the server in memory, wherever it runs.
type server struct {
	url     string
	asks    io.WriteCloser
	answers *json.Decoder
	wait    func() error
}

// startServer starts a server with a command, or in this process without one.
func startServer(ctx context.Context, command []string, maxBytes, linkBytesPerS int64) (*server, error) {
	s := new(server)
	if err := s.start(ctx, command, maxBytes, linkBytesPerS); err != nil {
		return nil, fmt.Errorf("start the bench's server: %w", err)
	}
	if err := s.answers.Decode(&s.url); err != nil {
		return nil, errors.Join(fmt.Errorf("the bench's server did not say where it is: %w", err), s.close())
	}
	return s, nil
}

func (s *server) start(ctx context.Context, command []string, maxBytes, linkBytesPerS int64) error {
	if len(command) == 0 {
		in, asks := io.Pipe()
		answers, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := Serve(ctx, maxBytes, linkBytesPerS, in, out)
			_ = out.CloseWithError(err)
			ended <- err
		}()
		s.asks, s.answers, s.wait = asks, json.NewDecoder(answers), func() error { return <-ended }
		return nil
	}
	args := append(command[1:len(command):len(command)], strconv.FormatInt(maxBytes, 10), strconv.FormatInt(linkBytesPerS, 10))
	cmd := exec.CommandContext(ctx, command[0], args...)
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	asks, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.asks, s.answers = asks, json.NewDecoder(answers)
	s.wait = func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(trouble.Bytes()))
		}
		return nil
	}
	return nil
}

// requests is how many requests came so far.
func (s *server) requests() (uint64, error) {
	var c s3mem.Counts
	if _, err := io.WriteString(s.asks, "\n"); err != nil {
		return 0, fmt.Errorf("ask the bench's server: %w", err)
	}
	if err := s.answers.Decode(&c); err != nil {
		return 0, fmt.Errorf("counts of the bench's server: %w", err)
	}
	return c.Requests(), nil
}

// close ends the server.
func (s *server) close() error { return errors.Join(s.asks.Close(), s.wait()) }
