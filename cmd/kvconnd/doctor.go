package main

import (
	"context"
	"errors"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/doctor"
)

type doctorCmd struct {
	GPU    doctorGPUCmd    `cmd:"" name:"gpu" help:"Look at this machine's CUDA driver and GPUs."`
	SGLang doctorSGLangCmd `cmd:"" name:"sglang" help:"Look at an SGLang server's command line and machine before it is started."`
}

// doctorSGLangCmd is `kvconnd doctor sglang`.
type doctorSGLangCmd struct {
	JSON        bool     `name:"json" help:"Print the findings as JSON."`
	CommandLine []string `arg:"" optional:"" passthrough:"" name:"command-line" help:"SGLang's command line, after --."`
}

// Help is shown below the command's summary.
func (*doctorSGLangCmd) Help() string {
	return `Run it where SGLang will run, in its container and with its Python environment active, with
its whole command line after --:

  kvconnd doctor sglang -- --model-path MODEL $(kvconnd config sglang)

It looks at the flags, kvconnd's socket, the compiler and headers of SGLang's page hash, the
memory of the container, layout and page size, and at what kvconn does not support. Nothing is
changed. The exit status is not 0 if SGLang would not start, would not cache, or would end.`
}

// errDoctor is for the exit status: the report says the rest.
var errDoctor = errors.New("something has to be mended: see the lines with FAIL")

// Run looks, and prints what it sees.
func (c *doctorSGLangCmd) Run(ctx context.Context, std *terminal.Streams) error {
	return report(std, doctor.SGLang(ctx, doctor.ThisMachine{}, c.CommandLine), c.JSON)
}

// doctorGPUCmd is `kvconnd doctor gpu`.
type doctorGPUCmd struct {
	JSON    bool   `name:"json" help:"Print the findings as JSON."`
	Library string `name:"library" default:"${cudaLibrary}" help:"The driver's library: a name that the loader finds, or a path (${default})."`
}

// Help is shown below the command's summary.
func (*doctorGPUCmd) Help() string {
	return `It loads the CUDA driver's library, needs no CUDA toolkit, and makes no context: it takes no
memory of a GPU and disturbs nobody. The exit status is not 0 if GPUs of this machine could not
be used.`
}

// Run looks, and prints what it sees.
func (c *doctorGPUCmd) Run(ctx context.Context, std *terminal.Streams) error {
	return report(std, doctor.GPU(ctx, c.Library), c.JSON)
}

// report prints findings; the worst of them decides about the exit status.
func report(std *terminal.Streams, findings []doctor.Finding, asJSON bool) error {
	var err error
	if asJSON {
		err = terminal.PrintJSON(std.Out, findings)
	} else {
		err = doctor.Print(std.Out, findings)
	}
	if err == nil && doctor.Worst(findings) == doctor.Failure {
		err = errDoctor
	}
	return err
}
