package front

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// objectOf is a JSON object of n fields.
func objectOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"f%d":{"a\"}":[1,{"b":2}],"c":"x:,{"}`, i)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// Fields take many times the memory of their text.
func TestABodyHasABoundedNumberOfFields(t *testing.T) {
	x := &Reader{MaxBodyBytes: 64 << 20}
	for n, want := range map[int]bool{0: true, 1: true, maxFields: true, maxFields + 1: false, 5 * maxFields: false} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(objectOf(n)))
		_, fields, err := x.Object(httptest.NewRecorder(), r)
		if got := err == nil; got != want || got && len(fields) != n {
			t.Errorf("%d fields: %d, %v", n, len(fields), err)
		}
	}
	for _, body := range []string{"", "null", "[]", "[" + strings.Repeat("{},", 5000) + "{}]", "{", `{"a":1}x`, strings.Repeat(":", 5000), `"` + strings.Repeat(":", 5000)} {
		if _, _, err := x.Object(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body))); err == nil {
			t.Errorf("%.20q is taken", body)
		}
	}
	long := `{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"a: b"},`, 5000), ",") + `],"model":"m"}`
	if _, fields, err := x.Object(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(long))); err != nil || len(fields) != 2 {
		t.Errorf("a long chat: %d fields, %v", len(fields), err)
	}
}
