package gpu

import (
	"os"

	"golang.org/x/sys/unix"
)

// populatePieceBytes is how much of a region is mapped at a time: the kernel takes a few milliseconds
// for it, in which the process maps nothing else and Close waits.
const populatePieceBytes = 16 << 20

// populate maps the pages of a region that the engine has made already, beside the first copies: a
// page that is touched for the first time costs a copy ten times what it costs later. Pages that
// the engine has not touched are left alone, since they would be made here, and be charged to
// this process.
func (m *hostMemory) populate(f *os.File, mem []byte) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 < int64(len(mem)) {
		return
	}
	m.populating.Go(func() {
		for at := 0; at < len(mem) && !m.closing.Load(); at += populatePieceBytes {
			piece := mem[at:min(at+populatePieceBytes, len(mem))]
			if unix.Madvise(piece, unix.MADV_POPULATE_WRITE) != nil {
				return // an old kernel, or the engine has truncated its memory: copies find out
			}
		}
	})
}
