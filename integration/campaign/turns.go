package campaign

import (
	"syscall"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// Turn is a fault at each operation of a kind in turn, once or for a while.
type Turn struct {
	Kind    fault.Kind
	Pattern string
	Effect  fault.Effect
	For     int64
}

// Turns are all of them.
func Turns() []Turn {
	var out []Turn
	for kind := fault.Read; kind < fault.Free; kind++ {
		for _, pattern := range []string{"*", "segments/**", "index/**", "namespaces/**"} {
			for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EMFILE} {
				for _, n := range []int64{1, 40} {
					out = append(out, Turn{kind, pattern, fault.Effect{Errno: errno}, n})
				}
			}
			out = append(out, Turn{kind, pattern, fault.Effect{Delay: time.Second}, 1})
			if kind == fault.Write {
				out = append(out, Turn{kind, pattern, fault.Effect{Torn: true}, 1})
			}
		}
	}
	return out
}

// Case is the turn at the nth operation. The faults come in an opening, in the use of the
// store, with evictions, and in a stop.
func (t Turn) Case(n int64) Case {
	c, err := ParseCase(turnSteps)
	if err != nil {
		panic(err) // a constant
	}
	c.Script = fault.Script{{Kind: t.Kind, Pattern: t.Pattern, After: n, For: t.For, Effect: t.Effect}}
	return c
}

const turnSteps = `
cap 12582912
save narrow 1 60
save wide 2 60
sync
stop
faults on
start
save narrow 3 200
read wide 2 60
save wide 4 200
read narrow 3 200
sync
stop
start
read wide 4 200
save wide 5 60
faults off
`
