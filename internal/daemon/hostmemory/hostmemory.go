// Package hostmemory knows how much memory the daemon may use.
package hostmemory

import (
	"iter"
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

// FreeBytes is the memory that the machine, and this process's cgroup and those above it, can still
// give without swapping. It is [math.MaxInt64] if none of them says.
func FreeBytes() int64 { return freeBytes("/") }

// freeBytes is FreeBytes. root is where proc and sys are mounted.
func freeBytes(root string) int64 {
	free := int64(math.MaxInt64)
	if kib, ok := field(filepath.Join(root, "proc/meminfo"), "MemAvailable:"); ok {
		free = kib << 10
	}
	for dir, names := range cgroups(root) {
		used, ok := number(filepath.Join(dir, names.used))
		if !ok {
			continue
		}
		// What files are cached can be dropped.
		cached, _ := field(filepath.Join(dir, "memory.stat"), names.cached)
		for _, limit := range names.limits {
			if n, ok := number(filepath.Join(dir, limit)); ok {
				free = min(free, max(0, n-max(0, used-cached)))
			}
		}
	}
	return free
}

// cgroupLimit is the memory that this process's cgroup and those above it allow, or
// [math.MaxInt64] if they set no limit or cannot be read. The system's figures for the machine
// don't include a container's limit, and a process that exceeds it is killed. root is where proc
// and sys are mounted.
func cgroupLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	for dir, names := range cgroups(root) {
		if n, ok := number(filepath.Join(dir, names.limits[0])); ok {
			limit = min(limit, n)
		}
	}
	return limit
}

// cgroupFiles are the names of what a version of cgroups says of memory. The first of limits is the
// hard one.
type cgroupFiles struct {
	limits       []string
	used, cached string
}

// cgroups are the directories of this process's cgroup and those above it.
func cgroups(root string) iter.Seq2[string, cgroupFiles] {
	return func(yield func(string, cgroupFiles) bool) {
		groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
		for line := range strings.Lines(string(groups)) {
			// number:controllers:path, with no controllers in version 2 (cgroups(7)).
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) != 3 {
				continue
			}
			mount, names := "sys/fs/cgroup", cgroupFiles{[]string{"memory.max", "memory.high"}, "memory.current", "inactive_file"}
			switch parts[1] {
			case "":
			case "memory":
				mount, names = "sys/fs/cgroup/memory", cgroupFiles{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"}
			default:
				continue
			}
			for at := filepath.Clean("/" + parts[2]); ; at = filepath.Dir(at) {
				if !yield(filepath.Join(root, mount, at), names) {
					return
				}
				if at == "/" {
					break
				}
			}
		}
	}
}

// number is the positive number that a file holds; others hold "max".
func number(path string) (int64, bool) {
	b, _ := os.ReadFile(path)
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil && n > 0
}

// field is the number after a name at the beginning of a line.
func field(path, name string) (int64, bool) {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
