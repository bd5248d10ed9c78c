package page

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// serve answers as daemon and router do.
func serve(t *testing.T, page http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(Path, page)
	mux.Handle(AssetsPath, Assets())
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestPagesHaveAllThatTheyNameAndNothingFromElsewhere(t *testing.T) {
	named := regexp.MustCompile(`(?:src|href)="([^"]+)"|from "\./([^"]+)"`)
	for name, page := range map[string]http.Handler{"daemon": Daemon(), "router": Router()} {
		w := serve(t, page, "/")
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		found := 0
		for _, m := range named.FindAllStringSubmatch(w.Body.String(), -1) {
			if !strings.HasPrefix(m[1], "/") && !strings.HasPrefix(m[1], "#") {
				t.Errorf("%s: %s is elsewhere", name, m[1])
			}
			if strings.HasPrefix(m[1], "/assets/") {
				found++
				if code := serve(t, page, m[1]).Code; code != 200 {
					t.Errorf("%s: %s: %d", name, m[1], code)
				}
			}
		}
		if found != 2 {
			t.Errorf("%s names %d assets", name, found)
		}
	}
	for _, path := range []string{"/assets/none", "/assets/..%2fpage.go", "/assets/", "/other"} {
		if w := serve(t, Daemon(), path); w.Code != http.StatusNotFound && w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// Names come from engines and clients: a script must not take them for markup. And the policy forbids styles in elements.
func TestScriptsSetTextOnly(t *testing.T) {
	err := fs.WalkDir(assets, "assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := assets.ReadFile(path)
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "http://", "https://", "style="} {
			if text := strings.ReplaceAll(string(b), `"http://www.w3.org/2000/svg"`, ""); strings.Contains(text, bad) {
				t.Errorf("%s has %s", path, bad)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
