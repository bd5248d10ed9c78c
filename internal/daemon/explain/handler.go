package explain

import (
	"net/http"

	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/httpserve"
)

// Handler serves explanations, one at a time: each may look for a million blocks.
func Handler(s *Source) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		q := new(Request)
		err := prompt.Decode(w, r, "model and tokens", q)
		if err == nil {
			err = q.Validate()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a, err := s.Explain(r.Context(), q)
		if err != nil {
			return // the client has gone
		}
		httpserve.WriteJSON(w, http.StatusOK, a, "  ")
	})
}
