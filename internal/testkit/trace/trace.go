// Package trace opens a recorded trace of conversations for tests: half of a public one, which is part
// of the repository, and the whole of it where a copy is at hand. testdata/README.md says where it comes
// from. Both have the format that [replay.Read] takes.
//
// [replay.Read]: https://pkg.go.dev/github.com/kvconn/kvconn/router/replay#Read
package trace

import (
	"bytes"
	"compress/gzip"
	_ "embed" // for the trace
	"io"
	"os"
	"testing"
)

// WholeVariable is the environment variable with the path of the whole trace.
const WholeVariable = "KVCONN_TRACE"

//go:embed testdata/conversation.jsonl.gz
var half []byte

// Half returns the conversations of the public trace that are in the repository, about one in two.
func Half(t testing.TB) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(half))
	if err != nil {
		t.Fatalf("open the reduced trace: %v", err)
	}
	return r
}

// Whole returns the whole public trace. It skips the test if [WholeVariable] does not name it.
func Whole(t testing.TB) io.Reader {
	t.Helper()
	path := os.Getenv(WholeVariable)
	if path == "" {
		t.Skipf("%s does not name the whole trace", WholeVariable)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatalf("open the whole trace: %v", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
