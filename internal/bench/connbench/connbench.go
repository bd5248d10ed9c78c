// Package connbench measures what a call costs an engine's scheduler: the round trip of a
// small request between two processes, over the same client, socket and server that an
// engine and the daemon use.
package connbench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
)

// Options configure a measurement.
type Options struct {
	// Command starts the process that calls, which must run [Call] with the arguments that
	// are appended: socket, calls and tokens.
	Command []string
	// Calls is the number of calls timed. Default 20,000: less than half a second.
	Calls int
	// Tokens is the number of tokens in a request. Default 16: one block.
	Tokens int
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Calls = cmp.Or(o.Calls, 20_000)
	o.Tokens = cmp.Or(o.Tokens, 16)
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case len(o.Command) == 0:
		return errors.New("connbench: no command to start the calling process with")
	case o.Calls < 1 || o.Calls > 1<<24:
		return fmt.Errorf("connbench: %d calls: want 1 to %d", o.Calls, 1<<24)
	case o.Tokens < 1 || o.Tokens > connector.MaxTokens:
		return fmt.Errorf("connbench: %d tokens: want 1 to %d", o.Tokens, connector.MaxTokens)
	}
	return nil
}

// Result is a distribution of round trips, in seconds.
type Result struct {
	Calls      int     `json:"calls"`
	Tokens     int     `json:"tokens"`
	RTTP50S    float64 `json:"rtt_p50_s"`
	RTTP99S    float64 `json:"rtt_p99_s"`
	RTTLowestS float64 `json:"rtt_lowest_s"`
	// RawP50S is the median round trip of bare bytes over the same kind of socket between
	// the same processes, taken right after the calls; Ratio is RTTP50S over it.
	RawP50S float64 `json:"raw_p50_s"`
	Ratio   float64 `json:"rtt_ratio"`
}

// RoundTrip serves in this process and has another one call.
func RoundTrip(ctx context.Context, o Options) (Result, error) {
	o.EnsureDefaults()
	var r Result
	if err := o.Validate(); err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "kvconn")
	if err != nil {
		return r, fmt.Errorf("make a directory for the socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket := filepath.Join(dir, "socket")
	l, err := server.Listen(ctx, socket)
	if err != nil {
		return r, err
	}
	served := make(chan error, 1)
	s := server.New(server.Options{Epoch: 1, Version: "connbench", UID: os.Getuid()}, backend{})
	go func() { served <- s.Serve(ctx, l) }()
	stopEcho, err := serveEcho(ctx, socket+echoSuffix)
	if err == nil {
		err = callFrom(ctx, &o, socket, &r)
		err = errors.Join(err, stopEcho())
	}
	cancel()
	return r, errors.Join(err, <-served)
}

// callFrom runs the calling process and reads its result.
func callFrom(ctx context.Context, o *Options, socket string, r *Result) error {
	args := append(o.Command[1:len(o.Command):len(o.Command)], socket, strconv.Itoa(o.Calls), strconv.Itoa(o.Tokens))
	cmd := exec.CommandContext(ctx, o.Command[0], args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("calling process: %w: %s", err, bytes.TrimSpace(errOut.Bytes()))
	}
	if err := json.NewDecoder(&out).Decode(r); err != nil {
		return fmt.Errorf("result of the calling process: %w", err)
	}
	return nil
}

// backend serves schedulers whose leader offers as many tokens as it is told: what is
// measured is the way there and back.
type backend struct{}

func (backend) OpenScheduler(context.Context, server.Peer, *connector.Manifest) (server.Scheduler, error) {
	return session{}, nil
}

func (backend) OpenWorker(context.Context, server.Peer, *connector.Manifest, int) (server.Worker, error) {
	return nil, fmt.Errorf("%w: no workers here", connector.ErrBadRequest)
}

type session struct{}

func (session) Match(_ context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	return connector.Offer{Tokens: len(m.Tokens)}, nil
}

func (session) Step(context.Context, *connector.StepRequest) (connector.StepReply, error) {
	return connector.StepReply{}, nil
}

func (session) Loaded(context.Context, *connector.LoadedReport) error { return nil }

func (session) Reset(context.Context) error { return nil }

func (session) Close() {}
