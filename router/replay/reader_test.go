package replay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// readFile reads a trace from testdata.
func readFile(t *testing.T, name string, o ReadOptions) *Trace {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := Read(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestReadMooncakeTrace(t *testing.T) {
	got := readFile(t, "small.jsonl", ReadOptions{})
	want := []Request{
		{At: 0, InputTokens: 1000, OutputTokens: 4, Blocks: []int32{0, 1}, Conversation: 0, FirstTurn: true},
		{At: 0, InputTokens: 1500, OutputTokens: 4, Blocks: []int32{0, 2, 3}, Conversation: 0, FirstTurn: false},
		{At: 2, InputTokens: 1600, OutputTokens: 8, Blocks: []int32{0, 2, 4, 5}, Conversation: 0, FirstTurn: false},
		{At: 60.0005, InputTokens: 2048, OutputTokens: 0, Blocks: []int32{0, 2, 4, 6}, Conversation: 0, FirstTurn: false},
		{At: 60.0005, InputTokens: 0, OutputTokens: 2, Blocks: []int32{}, Conversation: 1, FirstTurn: true},
		{At: 60.001, InputTokens: 700, OutputTokens: 2, Blocks: []int32{7}, Conversation: 2, FirstTurn: true},
	}
	if !reflect.DeepEqual(got.Requests, want) {
		t.Errorf("requests\n%+v\nwant\n%+v", got.Requests, want)
	}
	sum := Summary{Requests: 6, BlockTokens: 512, Blocks: 14, DistinctBlocks: 8, InputTokens: 6848, OutputTokens: 20, SpanSeconds: 60.001,
		Conversations: 3, ConversationSource: ConversationsDerived}
	if s := got.Summary(); s != sum {
		t.Errorf("summary %+v, want %+v", s, sum)
	}
}

func TestRecordedConversationsGoBeforeDerivedOnes(t *testing.T) {
	got := readFile(t, "chats.jsonl", ReadOptions{BlockTokens: 16, TimestampUnit: time.Second})
	var conversations []int32
	var first []bool
	for _, r := range got.Requests {
		conversations, first = append(conversations, r.Conversation), append(first, r.FirstTurn)
	}
	if want := []int32{0, 1, 0, 0, 2, 3, 2}; !reflect.DeepEqual(conversations, want) {
		t.Errorf("conversations %v, want %v", conversations, want)
	}
	if want := []bool{true, true, false, false, true, true, false}; !reflect.DeepEqual(first, want) {
		t.Errorf("first turns %v, want %v", first, want)
	}
	if got.Source != ConversationsRecorded || got.Conversations != 4 || got.Requests[2].At != 2.25 {
		t.Errorf("%s, %d conversations, third request at %v s", got.Source, got.Conversations, got.Requests[2].At)
	}
}

// A system prompt that many requests share makes no conversation of them.
func TestCommonHeadIsNoConversation(t *testing.T) {
	var text strings.Builder
	for range 20 {
		text.WriteString(`{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}` + "\n")
	}
	got, err := Read(strings.NewReader(text.String()), ReadOptions{})
	if err != nil || got.Conversations != 20 {
		t.Errorf("%d conversations, %v; want 20", got.Conversations, err)
	}
}

func TestReadNamesLineAndReason(t *testing.T) {
	const good = `{"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}` + "\n"
	for name, c := range map[string]struct {
		text   string
		line   int
		reason string
	}{
		"no JSON":            {good + "timestamp,input\n", 2, "not JSON"},
		"cut off":            {good + good[:30], 2, "not JSON"},
		"an array":           {"[1, 2]\n", 1, "not a JSON object: array"},
		"text for a number":  {`{"timestamp": "noon"}` + "\n", 1, "timestamp cannot be a string"},
		"fraction of tokens": {`{"timestamp": 1, "input_length": 1.5}` + "\n", 1, "input_length cannot be a number 1.5"},
		"huge id":            {`{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [99999999999999999999]}` + "\n", 1, "hash_ids"},
		"no timestamp":       {`{"input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n", 1, "no timestamp"},
		"no input_length":    {`{"timestamp": 1, "output_length": 1, "hash_ids": [1]}` + "\n", 1, "no input_length"},
		"no output_length":   {`{"timestamp": 1, "input_length": 1, "hash_ids": [1]}` + "\n", 1, "no output_length"},
		"negative tokens":    {`{"timestamp": 1, "input_length": -1, "output_length": 1, "hash_ids": []}` + "\n", 1, "input_length -1 is out of range"},
		"too much output":    {`{"timestamp": 1, "input_length": 1, "output_length": 2000000000, "hash_ids": [1]}` + "\n", 1, "out of range"},
		"too few ids":        {good + strings.Replace(good, "600", "6000", 1), 2, "2 hash_ids for 6000 tokens"},
		"out of order":       {good + strings.Replace(good, ": 5", ": 4", 1), 2, "sort the trace"},
		"endless":            {good + strings.Replace(good, ": 5", ": 5e15", 1), 2, "after the first"},
		"out of the clock":   {strings.Replace(good, ": 5", ": 1e300", 1), 1, "out of range"},
		"ids of blocks only": {good + "\n" + strings.Replace(good, "[1, 2]", "[2, 1]", 1), 3, "ids have to stand for the block and everything before it"},
		"id twice":           {strings.Replace(good, "[1, 2]", "[1, 1]", 1), 1, "ids have to stand for the block and everything before it"},
		"too long":           {good + strings.Repeat(" ", maxLineBytes) + good, 2, "longer than 8388608 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text), ReadOptions{})
			if !errors.Is(err, ErrBadTrace) || !strings.HasPrefix(err.Error(), fmt.Sprintf("bad trace: line %d: ", c.line)) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%v; want line %d: %s", err, c.line, c.reason)
			}
		})
	}
	if _, err := Read(strings.NewReader("\n\n"), ReadOptions{}); !errors.Is(err, ErrEmptyTrace) {
		t.Errorf("empty trace: %v", err)
	}
	if _, err := Read(strings.NewReader(good), ReadOptions{BlockTokens: -1}); err == nil {
		t.Error("blocks of -1 tokens were accepted")
	}
}

// FuzzRead feeds anything to the reader; what it accepts must be a trace that can be replayed.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"small.jsonl", "chats.jsonl"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"timestamp":-9e15,"input_length":1073741824,"output_length":1073741824,"hash_ids":[-1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, blockTokens := range []int{16, 512, maxTokens} {
			trace, err := Read(strings.NewReader(string(text)), ReadOptions{BlockTokens: blockTokens})
			if err != nil {
				if trace != nil || err.Error() == "" {
					t.Fatalf("%v with %v", trace, err)
				}
				continue
			}
			if len(trace.Requests) > 100 {
				continue
			}
			r, err := Run(t.Context(), trace, Options{Ranks: 2, GPUBlocks: 3, DiskBlocks: 4, ObjectBlocks: 5}, []string{"conversation", "cost"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Policies {
				if p.Served+p.Refused != len(trace.Requests) {
					t.Fatalf("%d served and %d refused of %d requests", p.Served, p.Refused, len(trace.Requests))
				}
			}
		}
	})
}
