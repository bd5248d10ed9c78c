package tokenize

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
)

func TestPromptsComeInManyForms(t *testing.T) {
	e := enginetest.New(t, "m")
	engines := func() []string { return []string{e.URL} }
	for body, want := range map[string][]uint32{
		`{"token_ids":[1,2]}`:            {1, 2},
		`{"prompt":[3,4]}`:               {3, 4},
		`{"prompt":[[5],[6]]}`:           {5},
		`{"prompt":"ab"}`:                enginetest.Tokens("ab"),
		`{"prompt":["cd","e"]}`:          enginetest.Tokens("cd"),
		`{"prompt":[]}`:                  {},
		`{"prompt":""}`:                  {},
		`{"messages":[{"role":"user"}]}`: enginetest.Tokens("user:\n"),
	} {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &fields); err != nil {
			t.Fatal(err)
		}
		f, err := client().Resolve(t.Context(), "m", fields, engines)
		if err != nil || !slices.Equal(f.IDs, want) || f.IDs == nil || f.Fallback != nil || f.Length != len(want) {
			t.Errorf("%s: %+v, %v", body, f, err)
		}
	}
	for _, body := range []string{`{}`, `{"prompt":null}`, `{"prompt":5}`, `{"prompt":{}}`, `{"prompt":["a",}`, `{"messages":"x"}`, `{"prompt":[1,"a"]}`, `{"token_ids":"x"}`, `{"prompt":[{}]}`} {
		var fields map[string]json.RawMessage
		_ = json.Unmarshal([]byte(body), &fields)
		if f, err := client().Resolve(t.Context(), "m", fields, engines); !errors.Is(err, ErrPrompt) {
			t.Errorf("%s: %+v, %v", body, f, err)
		}
	}
}

func TestWithoutATokenizerTheLengthIsGuessed(t *testing.T) {
	f, err := client().Resolve(t.Context(), "m", map[string]json.RawMessage{"prompt": json.RawMessage(`"0123456789abcdef"`)}, func() []string { return nil })
	if err != nil || f.IDs != nil || f.Length != 4 || !errors.Is(f.Fallback, ErrTokenize) {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestAPromptThatIsTooLongIsNoLoadAlone(t *testing.T) {
	e := enginetest.New(t, "m")
	c := client()
	c.MaxTokens = 3
	for _, body := range []string{`{"token_ids":[1,2,3,4]}`, `{"prompt":[1,2,3,4]}`, `{"prompt":[[1,2,3,4]]}`, `{"prompt":"abcd"}`, `{"messages":[{"role":"user"}]}`} {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &fields); err != nil {
			t.Fatal(err)
		}
		if f, err := c.Resolve(t.Context(), "m", fields, func() []string { return []string{e.URL} }); !errors.Is(err, ErrTooLong) {
			t.Errorf("%s: %+v, %v", body, f, err)
		}
	}
}
