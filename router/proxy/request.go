package proxy

import (
	"errors"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// Headers of requests and answers.
const (
	// PinHeader asks for a rank by its id; with StrictHeader true no other will do. In an answer it is the
	// rank that was chosen.
	PinHeader    = "X-Kvconn-Rank"
	StrictHeader = "X-Kvconn-Rank-Strict"
	// ReasonHeader is why the rank was chosen, CachedHeader how many tokens were expected to be cached
	// there, NoteHeader what was done differently than asked.
	ReasonHeader = "X-Kvconn-Reason"
	CachedHeader = "X-Kvconn-Cached-Tokens"
	NoteHeader   = "X-Kvconn-Note"
)

// incoming is a client's request.
type incoming struct {
	*front.Request
	body   []byte
	stream bool
}

// read reads a client's request.
func (p *Proxy) read(w http.ResponseWriter, r *http.Request) (*incoming, error) {
	body, fields, err := p.opts.Reader.Object(w, r)
	if err != nil {
		return nil, err
	}
	rank, strict, err := pin(r.Header)
	if err != nil {
		return nil, err
	}
	if rank != policy.NoPin {
		fields.Unpin()
	}
	in := &incoming{body: body}
	if in.Request, err = p.opts.Reader.Read(r.Context(), r.Header, fields); err != nil {
		return nil, err
	}
	if in.Fallback != nil {
		p.counts.untokenized.Add(1)
		if !errors.Is(in.Fallback, tokenize.ErrPrompt) { // the engine will say what is wrong with that
			p.opts.Logger.Debug("a prompt was routed by load alone", "model", in.Model, "error", in.Fallback)
		}
	}
	_ = fields.Read("stream", &in.stream) // the engine says what is wrong with it
	if in.Silent = !in.stream; rank != policy.NoPin {
		in.Pin, in.Strict = rank, strict
	}
	return in, nil
}

// pin returns the rank that a request's headers ask for.
func pin(h http.Header) (rank int32, strict bool, err error) {
	v := h.Get(PinHeader)
	if v == "" {
		return policy.NoPin, false, nil
	}
	id, err := strconv.ParseInt(v, 10, 32)
	if err != nil || id < 0 {
		return 0, false, front.BadRequest("%s is %.32q: want the id of a rank", PinHeader, v)
	}
	if v = h.Get(StrictHeader); v != "" {
		if strict, err = strconv.ParseBool(v); err != nil {
			return 0, false, front.BadRequest("%s is %.32q: want true or false", StrictHeader, v)
		}
	}
	return int32(id), strict, nil
}

// stripHops removes the headers that concern one connection alone (RFC 9110, 7.6.1), also those that Connection names.
func stripHops(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade",
	} {
		h.Del(name)
	}
}

// toEngine makes the headers of the request that a rank gets.
func (p *Proxy) toEngine(r *http.Request, in *incoming, d *route.Decision) http.Header {
	h := r.Header.Clone()
	stripHops(h)
	for _, name := range []string{"Content-Length", registry.RankHeader, registry.OverrideHeader, PinHeader, StrictHeader} {
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
	from = from.Clone()
	stripHops(from) // and not those that the router has set
	maps.Copy(to, from)
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
