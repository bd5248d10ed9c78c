package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/internal/cli/terminal"
)

// copierCmd is `kvconnd copier`: what the daemon starts for each GPU.
type copierCmd struct {
	GPU string `arg:"" help:"The GPU's UUID, for those who look at processes."`
}

// controlDescriptor is the socket to the daemon.
const controlDescriptor = 3

// Run serves the daemon that started this process.
func (*copierCmd) Run(ctx context.Context, _ *terminal.Streams) error {
	if _, err := unix.FcntlInt(controlDescriptor, unix.F_GETFD, 0); err != nil {
		return errors.New("only kvconnd itself starts a copier")
	}
	unix.CloseOnExec(controlDescriptor)
	// The daemon starts it by a path that says nothing to those who look at processes.
	_ = os.WriteFile("/proc/self/comm", []byte("kvconnd"), 0)
	// A service manager sends its signal to all processes of the service. The daemon outlives a hangup, and this one is
	// needed until the daemon closes the socket.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return copier.Run(ctx, os.NewFile(controlDescriptor, "control"), os.Exit)
}
