package campaign

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// What a run takes from its environment; docs/reliability.md lists it.
const (
	timeVariable   = "KVCONN_CAMPAIGN_TIME"
	trialsVariable = "KVCONN_CAMPAIGN_TRIALS"
	reportVariable = "KVCONN_CAMPAIGN_REPORT"
	onlyVariable   = "KVCONN_CAMPAIGN_ONLY"
)

// How long a campaign takes in a plain run of the tests, and if a number of trials is asked for.
const (
	plainTime = time.Second
	noLimit   = 1000 * time.Hour
)

// campaignTime is how long a campaign begins something new.
func campaignTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(timeVariable)
	switch {
	case text != "":
	case os.Getenv(trialsVariable) != "":
		return noLimit
	default:
		return plainTime
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", timeVariable, err)
	}
	return d
}

// workDir is a directory in memory, where there is such a disk.
func workDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvconn-campaign-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// workers is how many trials run at one time.
func workers() int { return runtime.GOMAXPROCS(0) }

// known is what is known to fail and not repaired yet.
func known(t *testing.T) Known {
	t.Helper()
	k, err := ReadKnown(filepath.Join("testdata", "known.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}
