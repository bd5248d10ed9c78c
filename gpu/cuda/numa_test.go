package cuda

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/region"
)

// policyOf is the memory policy at an address.
func policyOf(t *testing.T, mem []byte) int {
	t.Helper()
	const ofAddress = 2 // MPOL_F_ADDR
	var mode int32
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), 0, 0, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), ofAddress, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	return int(mode)
}

// needsBinding skips the test where memory cannot be bound.
func needsBinding(t *testing.T) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	if err := bindMemory(mem, policyPreferred, 0); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestMemoryComesFromTheGPUsNode(t *testing.T) {
	needsBinding(t)
	for name, tc := range map[string]struct {
		attributes string
		// first and both are the policies with one GPU in use, and with two.
		first, both int
	}{
		"one node":     {"134=0", policyPreferred, policyPreferred},
		"two nodes":    {"134=0,1:134=1", policyPreferred, policyDefault},
		"no node":      {"134=-1", policyDefault, policyDefault},
		"one unknown":  {"134=0,1:134=-1", policyPreferred, policyDefault},
		"a later node": {"134=-1,1:134=0", policyDefault, policyDefault},
		"not in range": {"134=5000", policyDefault, policyDefault},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{"FAKECUDA_DEVICES=2", "FAKECUDA_ATTR=" + tc.attributes}
			r := newRig(t, nil, env...)
			if got := policyOf(t, r.arena); got != policyDefault {
				t.Errorf("policy %d before a GPU is in use", got)
			}
			for device, want := range []int{tc.first, tc.both} {
				e := startEngine(t, device, env...)
				m := r.open(e.region(region.IPC, granularity))
				if got := policyOf(t, r.arena); got != want {
					t.Errorf("policy %d with %d GPUs in use, want %d", got, device+1, want)
				}
				if err := exercise(t, r, e, m); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A node that the machine has not, or that is not allowed, costs nothing.
func TestANodeThatIsNotThereIsNoFault(t *testing.T) {
	r := newRig(t, nil, "FAKECUDA_ATTR=134=1000")
	e := startEngine(t, 0)
	if err := exercise(t, r, e, r.open(e.region(region.IPC, granularity))); err != nil {
		t.Error(err)
	}
}
