package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

var (
	// ErrEmptyTrace means that there is no request in the trace.
	ErrEmptyTrace = errors.New("the trace has no requests")
	// ErrBadTrace means that a line of the trace is wrong; the error names it, counted from 1, and says why.
	ErrBadTrace = errors.New("bad trace")
)

// maxTokens bounds a prompt and an answer; it is the bound of the load tracker.
const maxTokens = 1 << 30

// maxLineBytes bounds a line: about a million blocks.
const maxLineBytes = 8 << 20

// maxSpanSeconds bounds the span of a trace, to some thirty years.
const maxSpanSeconds = 1e9

// ReadOptions configure [Read].
type ReadOptions struct {
	// BlockTokens is the number of tokens in a block. Default 512, as in the traces of Mooncake.
	BlockTokens int
	// TimestampUnit is what timestamps count. Default 1 ms.
	TimestampUnit time.Duration
}

// EnsureDefaults fills in every field that is zero.
func (o *ReadOptions) EnsureDefaults() {
	o.BlockTokens = cmp.Or(o.BlockTokens, 512)
	o.TimestampUnit = cmp.Or(o.TimestampUnit, time.Millisecond)
}

// Validate reports the first option that cannot work.
func (o *ReadOptions) Validate() error {
	switch {
	case o.BlockTokens < 1 || o.BlockTokens > maxTokens:
		return fmt.Errorf("replay: blocks of %d tokens: want 1 to %d", o.BlockTokens, maxTokens)
	case o.TimestampUnit <= 0:
		return errors.New("replay: the unit of timestamps must be positive")
	}
	return nil
}

// line is a line of the format of the traces that the Mooncake project published with its FAST'25
// paper, and the conversation ids that other traces add: session_id, or chat_id and parent_chat_id as
// in the Qwen-Bailian traces.
type line struct {
	Timestamp    *float64        `json:"timestamp"`
	InputLength  *int64          `json:"input_length"`
	OutputLength *int64          `json:"output_length"`
	HashIDs      []int64         `json:"hash_ids"`
	SessionID    json.RawMessage `json:"session_id"`
	ChatID       json.RawMessage `json:"chat_id"`
	ParentChatID json.RawMessage `json:"parent_chat_id"`
}

type reader struct {
	opts   ReadOptions
	trace  *Trace
	blocks map[int64]int32
	before []int32 // the block before each, -1 for none
	chats  chats
	first  float64 // timestamp of the first request
	last   float64
}

// Read reads a trace: one JSON object a line with timestamp, input_length, output_length and hash_ids,
// one id for each block of the prompt that stands for the block and everything before it; the id of a
// partial last block may be left out. Timestamps don't decrease. Empty lines are skipped. Errors
// are those of r, [ErrBadTrace] or [ErrEmptyTrace].
func Read(r io.Reader, o ReadOptions) (*Trace, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &reader{opts: o, trace: &Trace{BlockTokens: o.BlockTokens}, blocks: map[int64]int32{}}
	p.chats.byID = map[string]int32{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLineBytes)
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		if reason := p.add(lines.Bytes()); reason != "" {
			return nil, fmt.Errorf("%w: line %d: %s", ErrBadTrace, n, reason)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d: longer than %d bytes", ErrBadTrace, n+1, maxLineBytes)
	case err != nil:
		return nil, fmt.Errorf("read trace after line %d: %w", n, err)
	case len(p.trace.Requests) == 0:
		return nil, ErrEmptyTrace
	}
	p.trace.DistinctBlocks = len(p.before)
	p.chats.finish(p.trace)
	return p.trace, nil
}

// add adds the request of one line; it returns what is wrong with it, or "".
func (p *reader) add(text []byte) string {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return describe(err)
	}
	if reason := p.check(&l); reason != "" {
		return reason
	}
	r := Request{InputTokens: int(*l.InputLength), OutputTokens: int(*l.OutputLength), Blocks: make([]int32, len(l.HashIDs))}
	before := int32(-1)
	for i, id := range l.HashIDs {
		b, known := p.blocks[id]
		switch {
		case !known && len(p.before) == math.MaxInt32:
			return "too many blocks"
		case !known:
			b = int32(len(p.before))
			p.blocks[id] = b
			p.before = append(p.before, before)
		case p.before[b] != before:
			return fmt.Sprintf("block %d (place %d) followed another block earlier: ids have to stand for the block and everything before it", id, i)
		}
		r.Blocks[i], before = b, b
	}
	at := *l.Timestamp
	if len(p.trace.Requests) == 0 {
		p.first = at
	}
	if r.At = (at - p.first) * float64(p.opts.TimestampUnit) / float64(time.Second); r.At > maxSpanSeconds {
		return fmt.Sprintf("timestamp %v is more than %.0f s after the first: do timestamps count something else?", at, float64(maxSpanSeconds))
	}
	p.last = at
	r.Conversation, r.FirstTurn = p.chats.add(&l)
	p.trace.Requests = append(p.trace.Requests, r)
	return ""
}

func (p *reader) check(l *line) string {
	switch {
	case l.Timestamp == nil:
		return "no timestamp"
	case l.InputLength == nil:
		return "no input_length"
	case l.OutputLength == nil:
		return "no output_length"
	case !(math.Abs(*l.Timestamp) <= 1<<53):
		return fmt.Sprintf("timestamp %v is out of range", *l.Timestamp)
	case len(p.trace.Requests) > 0 && *l.Timestamp < p.last:
		return fmt.Sprintf("timestamp %v is before that of the previous request, %v: sort the trace", *l.Timestamp, p.last)
	case *l.InputLength < 0 || *l.InputLength > maxTokens:
		return fmt.Sprintf("input_length %d is out of range", *l.InputLength)
	case *l.OutputLength < 0 || *l.OutputLength > maxTokens:
		return fmt.Sprintf("output_length %d is out of range", *l.OutputLength)
	}
	full, size := *l.InputLength/int64(p.opts.BlockTokens), int64(p.opts.BlockTokens)
	if n := int64(len(l.HashIDs)); n != full && n != (*l.InputLength+size-1)/size {
		return fmt.Sprintf("%d hash_ids for %d tokens: not blocks of %d tokens", n, *l.InputLength, size)
	}
	return ""
}

// describe says in terms of a trace what is wrong with its JSON.
func describe(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		if kind.Field == "" {
			return "not a JSON object: " + kind.Value
		}
		return fmt.Sprintf("%s cannot be a %s", kind.Field, kind.Value)
	}
	return "not JSON: " + err.Error()
}
