package doctor

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
)

// Times that looking may take. A compiler on a cold disk is slow.
const (
	compileTimeout = time.Minute
	connectTimeout = 5 * time.Second
)

// ThisMachine is the machine or container that the program runs on.
type ThisMachine struct{}

// Find implements [Machine].
func (ThisMachine) Find(program string) (string, error) { return exec.LookPath(program) }

// Compiles implements [Machine].
func (ThisMachine) Compiles(ctx context.Context, compiler, source, library string) error {
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "kvconn-doctor-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := exec.CommandContext(ctx, compiler, "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", filepath.Join(dir, "out.so"), "-l"+library)
	c.Stdin = strings.NewReader(source)
	if out, err := c.CombinedOutput(); err != nil {
		line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return fmt.Errorf("%w: %s", err, line)
	}
	return nil
}

// MemoryBytes implements [Machine].
func (ThisMachine) MemoryBytes() int64 { return hostmemory.AvailableBytes() }

// Connect implements [Machine].
func (ThisMachine) Connect(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
