package integration

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
)

// processOptions say what an engine's process runs.
type processOptions struct {
	Socket         string
	Order          engine.Order
	Hybrid         bool
	TensorParallel int
	// At, if set, is the point at which the process says so and stands still.
	At string
	// CUDALibrary, if set, is the driver's library of the device that its KV cache lies on.
	CUDALibrary string
	// Later has its saves reported later, and blocks of theirs taken back as soon as they get other content.
	Later bool
	// Blocks, if not 0, is the size of its KV cache.
	Blocks int
}

func (p *processOptions) engine() engine.Options {
	return engineOptions(func(o *engine.Options) {
		o.Order, o.TensorParallel, o.Blocks = p.Order, p.TensorParallel, cmp.Or(p.Blocks, o.Blocks)
		if p.Hybrid {
			o.Model = model.TinyHybrid(1)
		}
	})
}

// processAnswer is one line of the process's output.
type processAnswer struct {
	Ready, Reached bool
	Results        []engine.Result
}

// serveEngineProcess is an engine in a process of its own: it reads its options and then
// lists of requests, one JSON value a line, and answers each list with its results.
func serveEngineProcess(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	var p processOptions
	if err := dec.Decode(&p); err != nil {
		return err
	}
	o := p.engine()
	var device *deviceMemory
	if p.CUDALibrary != "" {
		if device, err = openDevice(p.CUDALibrary); err != nil {
			return err
		}
		o.NewMemory = device.make
	}
	e, err := engine.New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	c := &calls{at: func(point string) {
		if point == p.At {
			_ = enc.Encode(processAnswer{Reached: true})
			select {}
		}
	}}
	co := clientOptions(p.Socket, fmt.Sprintf("process-%d", os.Getpid()), e, &o)
	if device != nil {
		co.Regions = device.regions
	}
	scheduler, err := engine.NewSchedulerClient(co)
	if err != nil {
		return err
	}
	defer scheduler.Close()
	var workers []engine.WorkerConnector
	var later []*laterWorker
	for rank := range co.Manifest.Ranks() {
		w, err := engine.NewWorkerClient(co, rank, e.Layout(rank), []*os.File{e.File(rank)})
		if err != nil {
			return err
		}
		defer w.Close()
		_ = w.Connect(ctx)
		if p.Later {
			later = append(later, &laterWorker{Worker: w.(*client.Worker), saves: make(map[string]bool)})
			workers = append(workers, later[rank])
		} else {
			workers = append(workers, &watchedWorker{w, c, rank})
		}
	}
	e.Attach(&watchedScheduler{scheduler, c}, workers...)
	if err := enc.Encode(processAnswer{Ready: true}); err != nil {
		return err
	}
	for {
		var requests []engine.Request
		if err := dec.Decode(&requests); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		results, err := e.Run(ctx, requests)
		for _, w := range later {
			err = errors.Join(err, w.settle(ctx))
		}
		if err != nil {
			return err
		}
		if err := enc.Encode(processAnswer{Results: results}); err != nil {
			return err
		}
	}
}

// engineProcess is an engine's process.
type engineProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	enc   *json.Encoder
	dec   *json.Decoder
	log   *testlog.Text
	ended bool
}

func startEngineProcess(t *testing.T, p processOptions) *engineProcess {
	t.Helper()
	e := &engineProcess{t: t, cmd: exec.Command(os.Args[0]), log: new(testlog.Text)}
	e.cmd.Env = append(slices.Clone(os.Environ()), engineVariable+"=1")
	e.cmd.Stderr = e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.kill)
	e.in, e.enc, e.dec = in, json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))
	if err := e.enc.Encode(&p); err != nil {
		t.Fatal(err)
	}
	if a := e.answer(); !a.Ready {
		t.Fatalf("engine process answers %+v", a)
	}
	return e
}

// kill ends the process with SIGKILL.
func (e *engineProcess) kill() {
	if e.ended {
		return
	}
	e.ended = true
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// submit has requests served.
func (e *engineProcess) submit(requests []engine.Request) {
	e.t.Helper()
	if err := e.enc.Encode(requests); err != nil {
		e.t.Fatalf("engine process: %v\n%s", err, e.log)
	}
}

func (e *engineProcess) answer() (a processAnswer) {
	e.t.Helper()
	if err := e.dec.Decode(&a); err != nil {
		e.t.Fatalf("engine process: %v\n%s", err, e.log)
	}
	return a
}
