package proxy

import (
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// hopByHop are the headers that concern one connection alone (RFC 9110, 7.6.1).
func hopByHop() []string {
	return []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade",
	}
}

// stripHops removes them, and those that Connection names.
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
	if in.session != "" {
		h.Set(SessionHeader, in.session)
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if before := h.Values("X-Forwarded-For"); len(before) > 0 {
			host = strings.Join(before, ", ") + ", " + host
		}
		h.Set("X-Forwarded-For", host)
	}
	if _, ok := h["Idempotency-Key"]; !ok && len(in.route.Exclude) == 0 {
		// Not sent: it has the transport try again on a new connection where the engine closed an idle one
		// as the request came, which servers do after seconds (uvicorn after 5). Not with a request that has
		// failed on a rank: it may be what fails.
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
	to.Set(ReasonHeader, d.Reason.String())
	to.Set(CachedHeader, strconv.Itoa(int(d.UseTokens)))
	if in.note != "" {
		to.Set(NoteHeader, headerText(in.note))
	}
}

// maxNote bounds a header that has an error's text.
const maxNote = 300

// headerText keeps what may stand in a header.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), maxNote)]
}
