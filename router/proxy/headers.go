package proxy

import (
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// hopByHop returns the headers that concern one connection alone (RFC 9110, 7.6.1).
func hopByHop() []string {
	return []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade",
	}
}

// stripHops removes them and the headers that Connection names.
func stripHops(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopByHop() {
		h.Del(name)
	}
}

// toEngine makes the headers of the request that a rank gets.
func (p *Proxy) toEngine(r *http.Request, in *incoming, d *route.Decision) http.Header {
	h := r.Header.Clone()
	stripHops(h)
	for _, name := range []string{"Content-Length", registry.RankHeader, PinHeader, StrictHeader} {
		h.Del(name)
	}
	if !p.opts.KeepAuthorization {
		h.Del("Authorization")
		if p.opts.EngineKey != "" {
			h.Set("Authorization", "Bearer "+p.opts.EngineKey)
		}
	}
	if d.Header != "" {
		h.Set(registry.RankHeader, d.Header)
	}
	if in.Session != "" {
		h.Set(front.SessionHeader, in.Session)
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if before := h.Values("X-Forwarded-For"); len(before) > 0 {
			host = strings.Join(before, ", ") + ", " + host
		}
		h.Set("X-Forwarded-For", host)
	}
	if _, ok := h["Idempotency-Key"]; !ok && len(in.Exclude) == 0 {
		// It is not sent. With it the transport tries again on a new connection if the engine closed an idle
		// one as the request came; servers do that after seconds (uvicorn after 5). A request that has
		// failed on a rank does not get it: the request may be the cause.
		h["Idempotency-Key"] = nil
	}
	return h
}

// toClient sets the headers of the answer.
func toClient(to, from http.Header, in *incoming, d *route.Decision) {
	for name, values := range from {
		to[name] = values
	}
	stripHops(to)
	to.Set(PinHeader, strconv.Itoa(int(d.Rank)))
	to.Set(ReasonHeader, string(d.Reason))
	to.Set(CachedHeader, strconv.Itoa(int(d.UseTokens)))
	if in.Note != "" {
		to.Set(NoteHeader, headerText(in.Note))
	}
}

// maxNote bounds a header with an error's text.
const maxNote = 300

// headerText keeps the characters that a header may have.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), maxNote)]
}
