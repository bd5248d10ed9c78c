package tokenize

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
)

func TestIDsAreReadAsJSONReadsThem(t *testing.T) {
	for _, text := range []string{"[]", " [ 1 , 2,3 ]\n", "[0]", "[4294967295]", "[10,200,3000]"} {
		var want []uint32
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if got, err := AppendIDs(nil, []byte(text), 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "[", "]", "[1", "[1,]", "[,1]", "[-1]", "[1.5]", "[4294967296]", `["1"]`, "[1] 2", "[01]", "{}", "null", "[1 2]", "[[1]]", "[99999999999999999999999]"} {
		if got, err := AppendIDs(nil, []byte(text), 10); !errors.Is(err, ErrIDs) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := AppendIDs(nil, []byte("[1,2,3]"), 2); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	if _, err := AppendIDs(nil, []byte("[1,2]"), 2); err != nil {
		t.Error(err)
	}
}

func FuzzAppendIDs(f *testing.F) {
	f.Add([]byte("[1, 2]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := AppendIDs(nil, b, 1000)
		var want []uint32
		if err == nil && (json.Unmarshal(b, &want) != nil || !slices.Equal(got, want)) {
			t.Errorf("%q: %v, want %v", b, got, want)
		}
	})
}

func client() *Client {
	return &Client{HTTP: &http.Client{}, Timeout: 20 * time.Second, MaxTokens: 1000}
}

func TestEnginesAreAskedInTurn(t *testing.T) {
	dead, alive := enginetest.New(t, "m"), enginetest.New(t, "m")
	dead.Close()
	got, err := client().Tokens(t.Context(), []string{dead.URL, alive.URL}, &Prompt{Model: "m", Text: "abc"})
	if err != nil || !slices.Equal(got, enginetest.Tokens("abc")) {
		t.Errorf("%v, %v", got, err)
	}
	got, err = client().Tokens(t.Context(), []string{alive.URL}, &Prompt{Messages: json.RawMessage(`[{"role":"user","content":"hi"}]`)})
	if err != nil || !slices.Equal(got, enginetest.Tokens("user:hi\n")) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = client().Tokens(t.Context(), []string{alive.URL}, &Prompt{}); err != nil || got == nil || len(got) != 0 {
		t.Errorf("an empty prompt has tokens %v, %v", got, err)
	}
}

func TestASlowOrMissingTokenizerIsAnErrorInTime(t *testing.T) {
	e := enginetest.New(t, "m")
	e.SetTokenize(enginetest.Hang)
	c := client()
	c.Timeout = 20 * time.Millisecond
	if _, err := c.Tokens(t.Context(), []string{e.URL, e.URL}, &Prompt{Text: "x"}); !errors.Is(err, ErrTokenize) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	e.SetTokenize(enginetest.Fail)
	if _, err := client().Tokens(t.Context(), []string{e.URL}, &Prompt{Text: "x"}); !errors.Is(err, ErrTokenize) {
		t.Error(err)
	}
	if _, err := client().Tokens(t.Context(), nil, &Prompt{Text: "x"}); !errors.Is(err, ErrTokenize) {
		t.Error(err)
	}
	c = client()
	c.MaxTokens = 2
	e.SetTokenize(enginetest.Serve)
	if _, err := c.Tokens(t.Context(), []string{e.URL}, &Prompt{Text: "xyz"}); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}
