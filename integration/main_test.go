package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// waitLimit bounds every wait of a test.
const waitLimit = wait.Limit

// What makes the test binary another program: a rank's process, an engine's, a daemon's.
const (
	rankVariable   = "KVCONN_INTEGRATION_RANK"
	engineVariable = "KVCONN_INTEGRATION_ENGINE"
	daemonVariable = "KVCONN_INTEGRATION_DAEMON"
	// scriptedVariable makes it a daemon under a script of faults.
	scriptedVariable = "KVCONN_INTEGRATION_SCRIPTED"
)

// binaryDir is where the daemon is built, "" until it is.
var binaryDir string

// daemonBinary is the daemon, built once.
var daemonBinary = sync.OnceValues(func() (string, error) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "kvconn-integration-"); err != nil {
		return "", err
	}
	path := filepath.Join(binaryDir, "kvconnd")
	out, err := exec.Command("go", slices.Concat([]string{"build"}, buildFlags(), []string{"-o", path, "../cmd/kvconnd"})...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build kvconnd: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(rankVariable) != "":
		err = engine.RunRank(context.Background(), os.Stdin, nil)
	case os.Getenv(engineVariable) != "":
		err = serveEngineProcess(context.Background(), os.Stdin, os.Stdout)
	case os.Getenv(daemonVariable) != "":
		var h heldDaemon
		if err = json.Unmarshal([]byte(os.Getenv(daemonVariable)), &h); err == nil {
			err = h.serve(context.Background())
		}
	case os.Getenv(scriptedVariable) != "":
		var d scriptedDaemon
		if err = json.Unmarshal([]byte(os.Getenv(scriptedVariable)), &d); err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			err = d.serve(ctx)
			stop()
		}
	default:
		wait.AllowAtOnce()
		code := m.Run()
		if binaryDir != "" {
			_ = os.RemoveAll(binaryDir)
		}
		os.Exit(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// long says whether the long variants are wanted.
func long() bool { return os.Getenv("KVCONN_TEST_LONG") == "1" }

// rounds is the number of rounds of a test that comes in two lengths, and in a third for
// runs under the race detector, which are asked to be short.
func rounds(short, full int) int {
	switch {
	case long():
		return full
	case testing.Short():
		return max(1, short/3)
	}
	return short
}
