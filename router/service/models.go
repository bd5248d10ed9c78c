package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// ModelList is the answer of /v1/models, in OpenAI's form.
type ModelList struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
}

// Model is a model in it, where no engine describes it.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	OwnedBy string `json:"owned_by"`
}

const (
	// modelsTimeout bounds asking the engines, maxModelBytes an answer.
	modelsTimeout = 2 * time.Second
	maxModelBytes = 1 << 20
	// modelsAtOnce is how many engines are asked at one time.
	modelsAtOnce = 16
)

// serveModels lists what requests may name, each as an engine that serves it describes it.
func (s *server) serveModels(_ http.ResponseWriter, r *http.Request) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), modelsTimeout)
	defer cancel()
	names := s.router.Models()
	list := ModelList{Object: "list", Data: make([]json.RawMessage, len(names))}
	var g errgroup.Group
	g.SetLimit(modelsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			list.Data[i] = s.model(ctx, r.Header, name)
			return nil
		})
	}
	return list, g.Wait()
}

// serveModel describes one of them.
func (s *server) serveModel(_ http.ResponseWriter, r *http.Request) (any, error) {
	name := r.PathValue("id")
	if !slices.Contains(s.router.Models(), name) {
		return nil, fail(http.StatusNotFound, "model_not_found", fmt.Sprintf("no rank serves the model %.64q", name))
	}
	ctx, cancel := context.WithTimeout(r.Context(), modelsTimeout)
	defer cancel()
	return s.model(ctx, r.Header, name), nil
}

// model is an engine's description of a model, or the router's own.
func (s *server) model(ctx context.Context, client http.Header, name string) json.RawMessage {
	if endpoints := s.router.ReadyEndpoints(name); len(endpoints) > 0 {
		if m, err := s.askModel(ctx, client, endpoints[0], name); err == nil {
			return m
		}
	}
	m, _ := json.Marshal(Model{ID: name, Object: "model", OwnedBy: "kvconn"}) // texts always have a form in JSON
	return m
}

func (s *server) askModel(ctx context.Context, client http.Header, endpoint, name string) (json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	switch {
	case s.opts.EngineKey != "":
		req.Header.Set("Authorization", "Bearer "+s.opts.EngineKey)
	case s.opts.Token == "" && client.Get("Authorization") != "":
		req.Header.Set("Authorization", client.Get("Authorization"))
	}
	resp, err := s.engines.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var list ModelList
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxModelBytes)).Decode(&list); err != nil {
		return nil, err
	}
	for _, raw := range list.Data {
		var m Model
		if json.Unmarshal(raw, &m) == nil && m.ID == name {
			return raw, nil
		}
	}
	return nil, fmt.Errorf("%s does not list %s", endpoint, name)
}
