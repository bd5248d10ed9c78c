package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/httpserve"
)

const (
	// maxBodyBytes bounds a request, maxTokens its prompt.
	maxBodyBytes = 16 << 20
	maxTokens    = 1 << 20
	// bodyTimeout bounds the reading of a request.
	bodyTimeout = 10 * time.Second
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
		reading := http.NewResponseController(w)
		_ = reading.SetReadDeadline(time.Now().Add(bodyTimeout)) // a recorder of tests has none
		q := new(Request)
		if err := decode(w, r, q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = reading.SetReadDeadline(time.Time{}) // its end would end the request
		a, err := s.Explain(r.Context(), q)
		if err != nil {
			return // the client has gone
		}
		httpserve.WriteJSON(w, http.StatusOK, a, "  ")
	})
}

func decode(w http.ResponseWriter, r *http.Request, q *Request) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return fmt.Errorf("the request is no JSON of model and tokens: %w", err)
	}
	switch {
	case q.Model == "":
		return errors.New("model is empty")
	case len(q.Tokens) > min(maxTokens, connector.MaxTokens):
		return fmt.Errorf("%d tokens: at most %d", len(q.Tokens), min(maxTokens, connector.MaxTokens))
	}
	return nil
}
