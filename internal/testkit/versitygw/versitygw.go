// Package versitygw runs a real S3 server for tests: versitygw, which the Go module proxy has. It checks
// signatures, and has conditional writes right.
package versitygw

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/freeport"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
)

const (
	// Version is the version that tests run against. Before v1.8.0 racing conditional writes were lost.
	Version = "v1.8.0"
	// BinaryEnv names a binary, or is [Build]. Without it tests that need the server are skipped: the
	// first use on a machine takes a minute of two cores.
	BinaryEnv = "KVCONN_TEST_VERSITYGW"
	// Build has the binary built from the module proxy, and kept in the user's cache.
	Build = "build"
	// Access and Secret are the server's only credentials.
	Access, Secret = "kvtest", "kvtestsecret"

	module      = "github.com/versity/versitygw/cmd/versitygw"
	buildTime   = 10 * time.Minute
	startTime   = time.Minute
	stopTime    = 10 * time.Second
	readyEvery  = 10 * time.Millisecond
	directories = 0o700
)

// Server is a running server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// Dir has a directory for each bucket.
	Dir string
}

// Start runs a server that has empty buckets with the given names, until the test ends. The test is
// skipped without [BinaryEnv].
func Start(t testing.TB, buckets ...string) *Server {
	t.Helper()
	binary := os.Getenv(BinaryEnv)
	switch binary {
	case "":
		t.Skipf("needs a real S3 server: set %s=%s, or to the path of versitygw %s", BinaryEnv, Build, Version)
	case Build:
		var err error
		if binary, err = build(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{Dir: t.TempDir()}
	for _, name := range buckets {
		if err := os.Mkdir(filepath.Join(s.Dir, name), directories); err != nil {
			t.Fatal(err)
		}
	}
	address := freeport.Address(t)
	s.Endpoint = "http://" + address
	cmd := exec.Command(binary, "--port", address, "--access", Access, "--secret", Secret, "-q", "--keep-alive", "posix", s.Dir)
	var log testlog.Text
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(stopTime):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	if err := s.await(address, ended); err != nil {
		t.Fatalf("start versitygw: %v\n%s", err, log.String())
	}
	return s
}

// await waits until the server takes connections.
func (s *Server) await(address string, ended chan error) error {
	for end := time.Now().Add(startTime); ; time.Sleep(readyEvery) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case err := <-ended:
			ended <- err // for the end of the test
			return fmt.Errorf("it has ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("no connection within %v: %w", startTime, err)
		}
	}
}

// build returns the binary, which is built once on a machine and kept in the user's cache.
func build(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep versitygw: %w", err)
	}
	dir := filepath.Join(cache, "kvconn-ci", "versitygw-"+Version)
	if err := os.MkdirAll(dir, directories); err != nil {
		return "", fmt.Errorf("where to keep versitygw: %w", err)
	}
	// Tests of other packages may want it at this moment.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("lock the build of versitygw: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the build of versitygw: %w", err)
	}
	binary := filepath.Join(dir, "versitygw")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	made, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("build versitygw: %w", err)
	}
	defer os.RemoveAll(made)
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", module+"@"+Version)
	cmd.Dir = made // not in a module
	cmd.Env = append(os.Environ(), "GOBIN="+made, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build versitygw: %w\n%s", err, out)
	}
	if err := os.Rename(filepath.Join(made, "versitygw"), binary); err != nil {
		return "", fmt.Errorf("keep versitygw: %w", err)
	}
	return binary, nil
}
