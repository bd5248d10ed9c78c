package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"testing"
)

// request is a line of the trace.
type request struct {
	Timestamp    int64   `json:"timestamp"`
	InputLength  int64   `json:"input_length"`
	OutputLength int64   `json:"output_length"`
	HashIDs      []int64 `json:"hash_ids"`
}

// isKept says whether a request is in the reduced trace. All prompts begin with the same block, and all
// turns of a conversation have the same second one, so conversations are kept or left out as a whole.
func isKept(r *request) bool {
	second := uint64(r.HashIDs[min(1, len(r.HashIDs)-1)])
	return bits.OnesCount64(second*0x9E3779B97F4A7C15)%2 == 0
}

// reduce returns the lines that are kept, with their blocks numbered in the order of their first use.
func reduce(t *testing.T, whole io.Reader) []byte {
	t.Helper()
	var out bytes.Buffer
	number := map[int64]int64{}
	lines, enc := bufio.NewScanner(whole), json.NewEncoder(&out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if !isKept(&r) {
			continue
		}
		for i, id := range r.HashIDs {
			n, known := number[id]
			if !known {
				n = int64(len(number))
				number[id] = n
			}
			r.HashIDs[i] = n
		}
		if err := enc.Encode(&r); err != nil {
			t.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// With KVCONN_TEST_UPDATE=1 it makes the reduced trace.
func TestTheReducedTraceIsMadeOfTheWholeOne(t *testing.T) {
	want := reduce(t, Whole(t))
	if os.Getenv("KVCONN_TEST_UPDATE") == "1" {
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("testdata", "conversation.jsonl.gz"), packed.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		half = packed.Bytes()
	}
	got, err := io.ReadAll(Half(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the reduced trace has %d bytes; made of the whole one it would have %d, or others", len(got), len(want))
	}
}
