package wire

import (
	"slices"
	"strings"

	"github.com/kvconn/kvconn/connector"
)

// StepDecoder decodes step requests into memory that it uses again, so that the steps of a
// running engine cost no allocation. It is not safe for concurrent use.
type StepDecoder struct {
	m connector.StepRequest
	// All block and token ids of a step lie in numbers, its tables in tables, and its
	// group_computed in ints: what is kept is bounded by one body, whatever its shape.
	numbers []uint32
	tables  [][]uint32
	ints    []int
}

// keepNumbers is the largest memory for ids that is kept between steps: 4 MiB.
const keepNumbers = 1 << 20

// Decode decodes the body of a step request. The slices in the result are valid until the
// next call; its strings may be kept.
func (s *StepDecoder) Decode(body []byte) (step *connector.StepRequest, err error) {
	if cap(s.numbers) > keepNumbers {
		s.numbers = nil
	}
	s.numbers = slices.Grow(s.numbers[:0], len(body)/4)
	s.tables, s.ints = s.tables[:0], s.ints[:0]
	m := &s.m
	old := *m
	*m = connector.StepRequest{}
	d := decoder{b: body}
	err = d.message(func(key []byte) {
		switch string(key) {
		case "allocs":
			m.Allocs = resized(old.Allocs, d.array("allocs", connector.MaxStepRequests))
			for i := range m.Allocs {
				s.alloc(&d, &m.Allocs[i])
			}
		case "scheduled":
			m.Scheduled = resized(old.Scheduled, d.array("scheduled", connector.MaxStepRequests))
			for i := range m.Scheduled {
				s.scheduled(&d, &m.Scheduled[i])
			}
		case "preempted":
			m.Preempted = d.stringsAgain(old.Preempted, "preempted")
		case "finished":
			m.Finished = d.stringsAgain(old.Finished, "finished")
		}
	})
	return m, err
}

func (s *StepDecoder) alloc(d *decoder, a *connector.Alloc) {
	old := a.Request
	*a = connector.Alloc{}
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) {
		switch string(key) {
		case "r":
			a.Request = d.strAgain(old, "r")
		case "blocks":
			a.Blocks = s.readTables(d)
		case "group_computed":
			from := len(s.ints)
			for range d.array("group_computed", connector.MaxGroups) {
				s.ints = append(s.ints, int(d.uint("group_computed", maxNumber)))
			}
			if len(s.ints) > from {
				a.GroupComputed = s.ints[from:len(s.ints):len(s.ints)]
			}
		case "computed":
			a.Computed = int(d.uint("computed", maxNumber))
		case "external":
			a.External = int(d.uint("external", maxNumber))
		}
	})
}

func (s *StepDecoder) scheduled(d *decoder, r *connector.Scheduled) {
	old := r.Request
	*r = connector.Scheduled{}
	if d.err != nil {
		return
	}
	d.fields(func(key []byte) {
		switch string(key) {
		case "r":
			r.Request = d.strAgain(old, "r")
		case "blocks":
			r.NewBlocks = s.readTables(d)
		case "reset":
			r.Reset = d.bool("reset")
		case "computed":
			r.Computed = int(d.uint("computed", maxNumber))
		case "count":
			r.Count = int(d.uint("count", maxNumber))
		case "from":
			r.From = int(d.uint("from", connector.MaxTokens))
		case "tokens":
			r.NewTokens = s.readNumbers(d, "tokens", connector.MaxTokens)
		}
	})
}

func (s *StepDecoder) readTables(d *decoder) [][]uint32 {
	from := len(s.tables)
	for range d.array("blocks", connector.MaxGroups) {
		s.tables = append(s.tables, s.readNumbers(d, "blocks", maxBlocks))
	}
	if len(s.tables) == from {
		return nil
	}
	return s.tables[from:len(s.tables):len(s.tables)]
}

// readNumbers decodes a bin of little-endian 32-bit numbers.
func (s *StepDecoder) readNumbers(d *decoder, what string, limit int) []uint32 {
	from := len(s.numbers)
	if s.numbers = d.appendU32s(s.numbers, what, limit); len(s.numbers) == from {
		return nil
	}
	return s.numbers[from:len(s.numbers):len(s.numbers)]
}

// resized is s with n elements, keeping what its elements were.
func resized[E any](s []E, n int) []E {
	if n > cap(s) {
		return append(s[:cap(s)], make([]E, n-cap(s))...)
	}
	return s[:n]
}

// strAgain reads a request id. Where it is equal to old, which is the rule from step to
// step, it is old.
func (d *decoder) strAgain(old, what string) string {
	v := d.view(what, connector.MaxIDBytes)
	if v == old {
		return old
	}
	return strings.Clone(v)
}

func (d *decoder) stringsAgain(old []string, what string) []string {
	out := resized(old, d.array(what, connector.MaxStepRequests))
	for i := range out {
		out[i] = d.strAgain(out[i], what)
	}
	return out
}
