package front

import (
	"encoding/json"
	"testing"
)

func TestTheFirstTurnIsSaidOrSeen(t *testing.T) {
	for body, want := range map[string]bool{
		`{"first_turn":true}`: true, `{"first_turn":false,"messages":[{"role":"user"}]}`: false, `{}`: false,
		`{"messages":[{"role":"user"}]}`: true, `{"messages":[{"role":"user"},{"role":"assistant"}]}`: false,
	} {
		if got := firstTurn(fieldsOf(t, body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
	a := opening([]byte(`[{"role":"system"},{"role":"user","content":"x"},{"role":"assistant"}]`))
	b := opening([]byte(`[{"role":"system"},{"role":"user","content":"x"}]`))
	if a == "" || a != b || opening(nil) != "" || opening([]byte(`[]`)) == a {
		t.Errorf("openings %q %q", a, b)
	}
}
func fieldsOf(t *testing.T, body string) (fields Fields) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}
