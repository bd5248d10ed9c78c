package httpserve

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTheTokenReachesItsServerAndNoOther(t *testing.T) {
	leaked := false
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked = r.Header.Get("Authorization") != "" }))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !HasToken(r, "secret"):
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		}
	}))
	defer s.Close()
	for token, want := range map[string]int{"secret": 200, "secre": 401, "": 401, "secret2": 401} {
		resp, err := Client(token).Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("token %q: %s, want %d", token, resp.Status, want)
		}
	}
	resp, err := Client("secret").Get(s.URL + "/away")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusFound || leaked {
		t.Errorf("%s, leaked %v", resp.Status, leaked)
	}
}
