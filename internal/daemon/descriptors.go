package daemon

import (
	"log/slog"
	"math"

	"golang.org/x/sys/unix"
)

// Descriptors that a daemon may need.
const (
	// httpConns bounds the connections of the HTTP interface: routers, monitoring and people of
	// one node.
	httpConns = 128
	// storeDescriptors are the journal's tables, logs and small files.
	storeDescriptors = 256 + 64
	// engineDescriptors are for a node's engines and ranks: each has a connection, a process
	// and memory.
	engineDescriptors = 1024
	// HTTP connections may have one descriptor in httpDescriptorPart: the rest is for engines
	// and the store.
	httpDescriptorPart = 8
)

// descriptorLimit is how many descriptors this process may have. Go has raised it to the
// hard limit at the start.
func descriptorLimit() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int64(l.Cur)
}

// httpConnsOf is the bound of HTTP connections under a limit of descriptors.
func httpConnsOf(limit int64) int { return int(min(max(limit/httpDescriptorPart, 4), httpConns)) }

// checkDescriptors warns if the limit may be too small for a store with that many segments.
func checkDescriptors(log *slog.Logger, limit, segments int64) {
	need := segments + storeDescriptors + engineDescriptors + int64(httpConnsOf(limit))
	if limit < need {
		log.Warn("the limit on open files may be too small: without descriptors nothing is saved and engines cannot connect",
			"limit", limit, "may_need", need, "remedy", "raise LimitNOFILE of the service, or the hard limit of ulimit -n")
	}
}
