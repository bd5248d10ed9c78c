package cuda

import (
	"fmt"
	"log/slog"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory policies of mbind(2).
const (
	policyDefault   = 0
	policyPreferred = 1
	// maxNodes that a mask has bits for. Linux can have no more.
	maxNodes = 1024
)

// placement has host memory come from the NUMA node that the GPUs in use are next to: a copy to another node goes over the link
// between processors. It is for memory that is not faulted in yet; what is stays where it is. Where GPUs name several nodes, or
// none, the system decides, as it does without GPUs.
type placement struct {
	mu sync.Mutex
	// known is set once a GPU has named its node; agreed while all have named the same.
	known, agreed bool
	node          int
}

// use takes note of the node of a GPU that is in use from now on, -1 if it names none.
func (p *placement) use(mem []byte, node int, log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.known:
		p.known, p.agreed, p.node = true, node >= 0 && node < maxNodes, node
		if p.agreed {
			tell(log, bindMemory(mem, policyPreferred, node), "more memory of the host tier comes from the GPU's NUMA node", node)
		}
	case p.agreed && node != p.node:
		p.agreed = false
		tell(log, bindMemory(mem, policyDefault, -1), "GPUs are next to several NUMA nodes: memory of the host tier comes from any", node)
	}
}

func tell(log *slog.Logger, err error, done string, node int) {
	if err != nil {
		log.Info("the NUMA node of the host tier's memory is left to the system", "gpu_node", node, "err", err,
			"remedy", "none is needed on a machine with one node; in a container, allow mbind(2) (CAP_SYS_NICE)")
		return
	}
	log.Info(done, "node", node)
}

// bindMemory sets the policy of a mapping of shared memory, and with it that of the file. mem must be of mmap.
func bindMemory(mem []byte, policy, node int) error {
	var mask [maxNodes / 64]uint64
	if node >= 0 {
		mask[node/64] |= 1 << (node % 64)
	}
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(policy),
		uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0) // the kernel reads one bit less than it is told
	if errno != 0 {
		return fmt.Errorf("bind memory to a NUMA node: %w", errno)
	}
	return nil
}
