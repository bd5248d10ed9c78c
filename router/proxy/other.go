package proxy

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/policy"
)

// Others returns the handler of engines' paths other than completions, such as /v1/embeddings and /v1/responses: it
// forwards a request to a rank of its model that load and conversation choose, since the tokens of its prompt are not known.
func (p *Proxy) Others() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := forwardable(r.URL.Path); err != nil {
			err.Write(w)
			return
		}
		p.counts.others.Add(1)
		p.forward(w, r, p.readOther)
	})
}

// ofOneEngine are paths that change an engine. One of several that has changed would answer otherwise than the rest.
func ofOneEngine() []string { return []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} }

// forwardable refuses paths that must not reach an engine through the router. A path must be written plainly, so that the
// engine takes it for the same one.
func forwardable(p string) *front.Error {
	plain := path.Clean(p)
	switch {
	case slices.Contains(ofOneEngine(), plain):
		return &front.Error{
			Status: http.StatusNotFound, Code: "not_forwarded",
			Message: strings.TrimPrefix(plain, "/v1/") + " changes one engine alone: send it to each engine itself",
		}
	// Engines may ignore a line break at the end, and redirect to their own address if there is a slash.
	case plain != p, strings.ContainsFunc(p, front.IsControl):
		return &front.Error{Status: http.StatusNotFound, Code: "not_found", Message: "the router has no such path"}
	}
	return nil
}

// readOther reads a request for another path.
func (p *Proxy) readOther(w http.ResponseWriter, r *http.Request) (*incoming, error) {
	body, err := p.opts.Reader.Body(w, r)
	if err != nil {
		return nil, err
	}
	rank, strict, err := pin(r.Header)
	if err != nil {
		return nil, err
	}
	in := &incoming{body: body}
	if in.Request, in.stream, err = p.opts.Reader.ReadOther(r, body, rank != policy.NoPin); err != nil {
		return nil, err
	}
	if in.Silent = !in.stream; rank != policy.NoPin {
		in.Pin, in.Strict = rank, strict
	}
	return in, nil
}
