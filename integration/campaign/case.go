package campaign

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// Case is a run of steps on a store under a script of faults. In a file it is one word list
// a line:
//
//	cap 16777216
//	disk 16777216
//	fault (on sync segments/* (for 60) EIO)
//	save narrow 1 40
//	sync
//	faults on
//	...
//
// The faults are off at the beginning and at the end. [Case.Run] lists what must hold at the end.
type Case struct {
	// Cap is the store's cap. Disk is the size of its file system, and a quarter of it must
	// stay free; 0 means large enough for anything.
	Cap, Disk int64
	// Script are the faults.
	Script fault.Script
	Steps  []Step
}

// Step is one line of a case.
type Step struct {
	Verb string
	Args []string
}

// String prints the step as its line.
func (s Step) String() string { return strings.Join(append([]string{s.Verb}, s.Args...), " ") }

// Kinds of words after a step's verb.
type argument int

const (
	sizeArgument argument = iota
	numberArgument
	switchArgument
	durationArgument
	damageArgument
	patternArgument
)

// verbs are all steps, with the words that follow.
func verbs() map[string][]argument {
	records := []argument{sizeArgument, numberArgument, numberArgument} // size, chain, length
	return map[string][]argument{
		"save": records, "read": records, "hold": records, // hold takes a lease
		"release": nil, "sync": nil,
		"faults": {switchArgument},
		"wait":   {durationArgument},
		// kill leaves the directory as kill -9 does. A start must follow it, as after a stop.
		// A start that fails under faults loses nothing.
		"stop": nil, "kill": nil, "start": nil,
		"opens": nil, // the last start must have succeeded
		// hide replaces the segments by an empty directory, as if their disk were not mounted;
		// show ends that.
		"hide": nil, "show": nil,
		"cap":    {numberArgument}, // from the next start on
		"damage": {damageArgument, patternArgument, numberArgument},
		// kept is the least share, in percent, of records that can be read; saves the least
		// share that can be written.
		"kept":  append(slices.Clone(records), numberArgument),
		"saves": append(slices.Clone(records), numberArgument),
	}
}

// damageWords are the faults of the step damage.
func damageWords() map[string]Fault {
	return map[string]Fault{"flip": Flipped, "cut": Cut, "delete": Deleted, "zero": Zeroed}
}

// ParseCase reads a case. Lines that begin with # are comments.
func ParseCase(text string) (Case, error) {
	c := Case{Cap: DefaultCap}
	for n, line := range strings.Split(text, "\n") {
		if err := c.line(strings.TrimSpace(line)); err != nil {
			return c, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return c, nil
}

func (c *Case) line(line string) error {
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	verb, rest, _ := strings.Cut(line, " ")
	if verb == "fault" {
		s, err := fault.Parse(rest)
		c.Script = append(c.Script, s...)
		return err
	}
	args := strings.Fields(rest)
	limit := map[string]*int64{"cap": &c.Cap, "disk": &c.Disk}[verb]
	if limit != nil && len(c.Steps) == 0 && len(args) == 1 {
		n, err := strconv.ParseInt(args[0], 10, 64)
		*limit = n
		return err
	}
	want, ok := verbs()[verb]
	if !ok || len(args) != len(want) {
		return fmt.Errorf("%q is no step", line)
	}
	for i, a := range args {
		if !want[i].valid(a) {
			return fmt.Errorf("%q: %q cannot be", line, a)
		}
	}
	c.Steps = append(c.Steps, Step{verb, args})
	return nil
}

func (a argument) valid(word string) bool {
	switch a {
	case sizeArgument:
		names := sizeNames()
		return slices.Contains(names[:], word)
	case numberArgument:
		n, err := strconv.Atoi(word)
		return err == nil && n >= 0
	case switchArgument:
		return word == "on" || word == "off"
	case durationArgument:
		d, err := time.ParseDuration(word)
		return err == nil && d >= 0 && d <= time.Minute
	case damageArgument:
		_, ok := damageWords()[word]
		return ok
	default:
		return word != ""
	}
}

// String prints the case so that [ParseCase] returns the same.
func (c *Case) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cap %d\n", c.Cap)
	if c.Disk > 0 {
		fmt.Fprintf(&b, "disk %d\n", c.Disk)
	}
	for i := range c.Script {
		fmt.Fprintf(&b, "fault %v\n", &c.Script[i])
	}
	for _, s := range c.Steps {
		fmt.Fprintf(&b, "%v\n", s)
	}
	return b.String()
}

// ReadCase reads a case's file.
func ReadCase(path string) (Case, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Case{}, err
	}
	c, err := ParseCase(string(b))
	if err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

func (s Step) number(i int) int {
	n, _ := strconv.Atoi(s.Args[i])
	return n
}

// records are those that the step's first three words name.
func (s Step) records() []Record {
	names := sizeNames()
	return Chain(Size(slices.Index(names[:], s.Args[0])), s.number(1), s.number(2))
}
