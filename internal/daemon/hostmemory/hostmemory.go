// Package hostmemory knows how much memory the daemon may use.
package hostmemory

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of the default size of the host tier.
const (
	hostShare        = 8
	mostHostShare    = 2
	minHostBytes     = 512 << 20
	maxHostBytes     = 16 << 30
	leastHostBytes   = 64 << 20
	unknownHostBytes = 1 << 30
)

// DefaultBytes is the default size of the host tier: an eighth of the memory that the daemon
// may have, within bounds.
func DefaultBytes() int64 {
	memory := AvailableBytes()
	if memory == math.MaxInt64 {
		return unknownHostBytes
	}
	return hostBytesOf(memory)
}

// AvailableBytes is the memory that this process may have: that of the machine, or of its
// cgroup if that has less. It is [math.MaxInt64] if neither is known.
func AvailableBytes() int64 {
	limit := cgroupLimit("/")
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		limit = min(limit, int64(info.Totalram)*int64(info.Unit))
	}
	return limit
}

func hostBytesOf(memory int64) int64 {
	n := min(max(memory/hostShare, minHostBytes), maxHostBytes)
	const whole = 1 << 20 // for people
	return max(min(n, memory/mostHostShare), leastHostBytes) / whole * whole
}

// cgroupLimit is the memory that this process's cgroup and those above it allow, or
// [math.MaxInt64] if they set no limit or cannot be read. The system's figures for the machine
// don't include a container's limit, and a process that exceeds it is killed. root is where proc
// and sys are mounted.
func cgroupLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		// number:controllers:path, with no controllers in version 2 (cgroups(7)).
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		switch parts[1] {
		case "":
		case "memory":
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for at := filepath.Clean("/" + parts[2]); ; at = filepath.Dir(at) {
			b, _ := os.ReadFile(filepath.Join(root, mount, at, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // else "max"
				limit = min(limit, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}
