package campaign

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// What a run takes from its environment; docs/reliability.md lists it.
const (
	timeVariable   = "KVCONN_CAMPAIGN_TIME"
	trialsVariable = "KVCONN_CAMPAIGN_TRIALS"
	reportVariable = "KVCONN_CAMPAIGN_REPORT"
	onlyVariable   = "KVCONN_CAMPAIGN_ONLY"
	seedVariable   = "KVCONN_SEED"
)

// How long a campaign takes in a plain run of the tests, in one that is asked to be short, and
// if a number of trials is asked for.
const (
	plainTime = 3 * time.Second
	shortTime = time.Second
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
	case testing.Short():
		return shortTime
	default:
		return plainTime
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", timeVariable, err)
	}
	return d
}

func numberOf(t *testing.T, variable string, other int64) int64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return other
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// Seeds: a commit is judged by the same cases each time, unless others are asked for.
const (
	plainSeed = 1
	freshSeed = "fresh"
)

// seed is the run's, which is logged.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano() & (1<<40 - 1))
	if os.Getenv(seedVariable) != freshSeed {
		s = uint64(numberOf(t, seedVariable, plainSeed))
	}
	t.Logf("%s=%d", seedVariable, s)
	return s
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
