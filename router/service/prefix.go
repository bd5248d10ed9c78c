package service

import (
	"errors"
	"net/http"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// PrefixAnswer is the answer of /v1/prefix.
type PrefixAnswer struct {
	PromptTokens int            `json:"prompt_tokens"`
	Ranks        []route.Prefix `json:"ranks"`
}

// serveGetPrefix takes a short prompt from the query.
func (s *server) serveGetPrefix(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	ids, err := tokenize.AppendIDs([]uint32{}, []byte("["+q.Get("token_ids")+"]"), s.opts.Route.MaxPromptTokens)
	if errors.Is(err, tokenize.ErrIDs) {
		err = front.BadRequest("token_ids: %v", err)
	}
	if err != nil {
		front.ErrorOf(err).Write(w)
		return
	}
	s.prefix(w, q.Get("model"), ids, connector.Scope{Salt: q.Get("cache_salt"), LoRA: q.Get("lora")})
}

// servePostPrefix takes a prompt as POST /v1/route does.
func (s *server) servePostPrefix(w http.ResponseWriter, r *http.Request) {
	_, fields, err := s.reader.Object(w, r)
	var q *front.Request
	if err == nil {
		q, err = s.ask(r.Context(), r.Header, fields)
	}
	switch {
	case err != nil:
		front.ErrorOf(err).Write(w)
	case q.Fallback != nil:
		fail(w, http.StatusBadGateway, "not_tokenized", q.Fallback.Error())
	default:
		s.prefix(w, q.Model, q.Prompt, q.Scope)
	}
}

func (s *server) prefix(w http.ResponseWriter, model string, ids []uint32, scope connector.Scope) {
	list, err := s.router.Prefixes(model, ids, scope)
	if err != nil {
		front.ErrorOf(err).Write(w)
		return
	}
	httpserve.WriteJSON(w, http.StatusOK, PrefixAnswer{PromptTokens: len(ids), Ranks: list})
}
