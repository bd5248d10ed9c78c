// Package fault is a small language for the faults of a disk. A script is a list of clauses in
// brackets. A clause names operations, conditions, and an effect:
//
//	(on sync segments/* (after 10) (for 60) EIO)
//	(on write segments/seg-00000001.kv (range 8192 16384) EIO)
//	(on read ** (prob 0.01 seed 7) (flip 1))
//	(on any index/* (since 100ms) (until 400ms) EMFILE)
//	(on free ** (since 1s) full)
//	(delay 1s (every 50))
//
// A script is parsed by [Parse], printed by [Script.String], and acted on by an [Injector].
// The package knows nothing about stores: package faultfs puts a script below one.
package fault

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kind is a kind of operation on a file system.
type Kind uint8

// The kinds of operations. Any, in a clause, is all of them.
const (
	Any Kind = iota
	Read
	Write
	Sync
	Open
	Create
	Remove
	Rename
	List
	Allocate
	Stat
	Lock
	Mkdir
	Free
	kinds
)

func kindNames() [kinds]string {
	return [kinds]string{"any", "read", "write", "sync", "open", "create", "remove", "rename", "list", "allocate", "stat", "lock", "mkdir", "free"}
}

// String is the kind's word in a script.
func (k Kind) String() string {
	if k < kinds {
		return kindNames()[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Op is one operation. Path is relative to the directory that the script is for, with
// slashes. Offset and Bytes say which part of a file is read or written.
type Op struct {
	Kind   Kind
	Path   string
	Offset int64
	Bytes  int64
}

// Effect is what a clause does to an operation. One of its fields is set.
type Effect struct {
	// Errno fails the operation.
	Errno syscall.Errno
	// Delay is how long the operation waits before it begins.
	Delay time.Duration
	// Flip is the number of bits that are flipped in what is read or written.
	Flip int
	// Torn makes a write put down only its first sectors and fail with EIO.
	Torn bool
	// Drop reports the operation as done without doing it: a lost write or sync.
	Drop bool
	// Full makes the file system report no free space, as if others had filled it.
	Full bool
}

// Clause is one fault. The zero value of a condition is no condition.
type Clause struct {
	// Kind and Pattern select operations. In a pattern, * stands for any part of a name
	// and ** for any path.
	Kind    Kind
	Pattern string
	// After is the number of matching operations that are left alone first, For the number
	// that the clause acts on after them.
	After, For int64
	// Every acts on one operation in Every.
	Every int64
	// Prob is the probability of acting on an operation, drawn from Seed.
	Prob float64
	Seed uint64
	// From and To are the part of the file, half open, that a read or write has to touch.
	From, To int64
	// Since and Until bound the time since the injector was switched on.
	Since, Until time.Duration
	Effect       Effect
}

// Script is a list of clauses. Each one that matches an operation acts on it.
type Script []Clause

// errnos are the errors that a script can name.
func errnos() map[string]syscall.Errno {
	return map[string]syscall.Errno{
		"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EMFILE": syscall.EMFILE, "ENFILE": syscall.ENFILE,
		"EROFS": syscall.EROFS, "EDQUOT": syscall.EDQUOT, "EACCES": syscall.EACCES, "ENOMEM": syscall.ENOMEM,
		"ETIMEDOUT": syscall.ETIMEDOUT, "EAGAIN": syscall.EAGAIN,
	}
}

// String prints the script, one clause a line, so that [Parse] returns the same.
func (s Script) String() string {
	lines := make([]string, len(s))
	for i := range s {
		lines[i] = s[i].String()
	}
	return strings.Join(lines, "\n")
}

// String prints the clause.
func (c *Clause) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "(on %v %s", c.Kind, c.Pattern)
	if c.After > 0 {
		fmt.Fprintf(&b, " (after %d)", c.After)
	}
	if c.For > 0 {
		fmt.Fprintf(&b, " (for %d)", c.For)
	}
	if c.Every > 0 {
		fmt.Fprintf(&b, " (every %d)", c.Every)
	}
	if c.Prob > 0 {
		fmt.Fprintf(&b, " (prob %s seed %d)", strconv.FormatFloat(c.Prob, 'g', -1, 64), c.Seed)
	}
	if c.To > 0 {
		fmt.Fprintf(&b, " (range %d %d)", c.From, c.To)
	}
	if c.Since > 0 {
		fmt.Fprintf(&b, " (since %v)", c.Since)
	}
	if c.Until > 0 {
		fmt.Fprintf(&b, " (until %v)", c.Until)
	}
	fmt.Fprintf(&b, " %v)", c.Effect)
	return b.String()
}

// String prints the effect as it stands in a clause.
func (e Effect) String() string {
	switch {
	case e.Delay > 0:
		return fmt.Sprintf("(delay %v)", e.Delay)
	case e.Flip > 0:
		return fmt.Sprintf("(flip %d)", e.Flip)
	case e.Torn:
		return "torn"
	case e.Drop:
		return "drop"
	case e.Full:
		return "full"
	}
	for name, errno := range errnos() {
		if errno == e.Errno {
			return name
		}
	}
	return e.Errno.Error()
}
