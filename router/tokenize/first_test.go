package tokenize

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Only the first prompt of a list counts, so a list of very many takes no memory of its own.
func TestALongListOfPromptsIsNotTakenApart(t *testing.T) {
	list := json.RawMessage(`["a"` + strings.Repeat(`,""`, 1<<20) + `]`)
	var f Found
	var err error
	n := allocated(func() {
		f, err = (&Client{MaxTokens: 10}).Resolve(context.Background(), "m", map[string]json.RawMessage{"prompt": list}, func() []string { return nil })
	})
	if err != nil || !f.Several || !errors.Is(f.Fallback, ErrTokenize) || n > 1<<20 {
		t.Errorf("%+v %v, %d bytes for %d", f, err, n, len(list))
	}
}
