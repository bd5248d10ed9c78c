package daemon

import "golang.org/x/sys/unix"

// Bounds of the default size of the host tier.
const (
	hostShare        = 8
	minHostBytes     = 512 << 20
	maxHostBytes     = 16 << 30
	unknownHostBytes = 1 << 30
)

// defaultHostBytes is an eighth of the machine's memory within bounds.
func defaultHostBytes() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return unknownHostBytes
	}
	total := int64(info.Totalram) * int64(info.Unit)
	return min(max(total/hostShare, minHostBytes), maxHostBytes)
}
