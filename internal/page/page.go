// Package page has the pages that daemon and router show at /: what they do, for people who have a browser and nothing else. A page
// is static and holds no figure; its script reads the JSON that everybody else reads, with the token if there is one. Nothing is
// built and nothing comes from elsewhere, which a policy in each answer enforces.
package page

import (
	"embed"
	"io/fs"
	"net/http"
)

// assets are served as they are.
//
//go:embed assets
var assets embed.FS

// Paths of the pages and of what they are made of, as patterns of [http.ServeMux].
const (
	Path       = "GET /{$}"
	AssetsPath = "GET /assets/{name}"
)

// policy lets a page load its own files and ask its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Daemon serves the daemon's page.
func Daemon() http.Handler { return file("daemon.html") }

// Router serves the router's page.
func Router() http.Handler { return file("router.html") }

// Assets serves the pages' scripts and their style.
func Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file(r.PathValue("name")).ServeHTTP(w, r)
	})
}

// file serves one of the assets.
func file(name string) http.Handler {
	tree, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // it is a constant
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // another version may be running
		http.ServeFileFS(w, r, tree, name)
	})
}
