package service

import (
	"errors"
	"net/http"

	"github.com/kvconn/kvconn/connector"
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
func (s *server) serveGetPrefix(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	ids, err := tokenize.AppendIDs([]uint32{}, []byte("["+q.Get("token_ids")+"]"), s.opts.Route.MaxPromptTokens)
	if errors.Is(err, tokenize.ErrIDs) {
		err = front.BadRequest("token_ids: %v", err)
	}
	if err != nil {
		return nil, err
	}
	return s.prefix(q.Get("model"), ids, connector.Scope{Salt: q.Get("cache_salt"), LoRA: q.Get("lora")})
}

// servePostPrefix takes a prompt as POST /v1/route does.
func (s *server) servePostPrefix(w http.ResponseWriter, r *http.Request) (any, error) {
	_, fields, err := s.reader.Object(w, r)
	if err != nil {
		return nil, err
	}
	q, err := s.ask(r.Context(), r.Header, fields)
	switch {
	case err != nil:
		return nil, err
	case q.Fallback != nil:
		return nil, fail(http.StatusBadGateway, "not_tokenized", q.Fallback.Error())
	}
	return s.prefix(q.Model, q.Prompt, q.Scope)
}

func (s *server) prefix(model string, ids []uint32, scope connector.Scope) (any, error) {
	list, err := s.router.Prefixes(model, ids, scope)
	return PrefixAnswer{PromptTokens: len(ids), Ranks: list}, err
}
