// Package descriptors divides the open files that a daemon may have among its parts.
package descriptors

import (
	"log/slog"
	"math"

	"golang.org/x/sys/unix"
)

// Descriptors that a daemon may need.
const (
	// maxHTTP bounds the connections of the HTTP interface: routers, monitoring and people of
	// one node.
	maxHTTP = 128
	// ofStore are the journal's tables, logs and small files.
	ofStore = 256 + 64
	// ofEngines are for a node's engines and ranks: each has a connection, a process
	// and memory.
	ofEngines = 1024
	// HTTP connections may have one descriptor in httpPart: the rest is for engines
	// and the store.
	httpPart = 8
)

// Limit is how many descriptors this process may have. Go has raised it to the
// hard limit at the start.
func Limit() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int64(l.Cur)
}

// HTTPConnections is the bound of HTTP connections under a limit of descriptors.
func HTTPConnections(limit int64) int { return int(min(max(limit/httpPart, 4), maxHTTP)) }

// Check warns if the limit may be too small for a store with that many segments.
func Check(log *slog.Logger, limit, segments int64) {
	need := segments + ofStore + ofEngines + int64(HTTPConnections(limit))
	if limit < need {
		log.Warn("the limit on open files may be too small: without descriptors nothing is saved and engines cannot connect",
			"limit", limit, "may_need", need, "remedy", "raise LimitNOFILE of the service, or the hard limit of ulimit -n")
	}
}
