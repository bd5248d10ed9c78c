package proxy

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/policy"
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
	in.Silent, in.Pin, in.Strict = !in.stream, rank, strict
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
