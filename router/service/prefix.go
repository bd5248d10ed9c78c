package service

import (
	"errors"
	"net/http"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/tokenize"
)

// PrefixAnswer is the answer of /v1/prefix.
type PrefixAnswer struct {
	PromptTokens int          `json:"prompt_tokens"`
	Ranks        []RankPrefix `json:"ranks"`
}

// RankPrefix is what one rank has of a prompt.
type RankPrefix struct {
	Rank   int32 `json:"rank"`
	Prefix Match `json:"prefix"`
}

// serveGetPrefix takes a short prompt from the query.
func (s *server) serveGetPrefix(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	ids, err := tokenize.AppendIDs([]uint32{}, []byte("["+q.Get("token_ids")+"]"), s.opts.Route.MaxPromptTokens)
	switch {
	case errors.Is(err, tokenize.ErrTooLong):
		writeError(w, http.StatusBadRequest, "prompt_too_long", err.Error())
		return
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_request", "token_ids: "+err.Error())
		return
	}
	s.prefix(w, q.Get("model"), ids, connector.Scope{Salt: q.Get("cache_salt"), LoRA: q.Get("lora")})
}

// servePostPrefix takes a prompt as POST /v1/route does.
func (s *server) servePostPrefix(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r)
	switch {
	case !ok:
	case q.found.Fallback != nil:
		writeError(w, http.StatusBadGateway, "not_tokenized", q.found.Fallback.Error())
	default:
		s.prefix(w, q.Model, q.found.IDs, q.scope())
	}
}

func (s *server) prefix(w http.ResponseWriter, model string, ids []uint32, scope connector.Scope) {
	list, err := s.router.Prefixes(model, ids, scope, nil)
	if err != nil {
		writeRouteError(w, err)
		return
	}
	a := PrefixAnswer{PromptTokens: len(ids), Ranks: make([]RankPrefix, len(list))}
	for i := range list {
		a.Ranks[i] = RankPrefix{Rank: list[i].Rank, Prefix: matchOf(&list[i].Match)}
	}
	writeJSON(w, http.StatusOK, a)
}
