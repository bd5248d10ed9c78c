package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// RankList is the answer of GET /v1/ranks.
type RankList struct {
	Ranks []route.RankInfo `json:"ranks"`
}

func (s *server) serveRanks(http.ResponseWriter, *http.Request) (any, error) {
	return RankList{Ranks: s.router.Ranks()}, nil
}

func (s *server) serveRank(_ http.ResponseWriter, r *http.Request) (any, error) { return s.rank(r) }

// rank returns the rank that the path names.
func (s *server) rank(r *http.Request) (route.RankInfo, error) {
	if id, err := strconv.ParseInt(r.PathValue("id"), 10, 32); err == nil {
		if i, ok := s.router.Rank(int32(id)); ok {
			return i, nil
		}
	}
	return route.RankInfo{}, fail(http.StatusNotFound, "unknown_rank", fmt.Sprintf("no rank %.32q", r.PathValue("id")))
}

func (s *server) serveAddRank(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := s.reader.Body(w, r)
	if err != nil {
		return nil, err
	}
	spec, err := registry.Parse(body)
	if err != nil {
		return s.changed(0, err)
	}
	s.patching.Lock()
	defer s.patching.Unlock()
	var given struct{ ID *int32 }
	if _ = json.Unmarshal(body, &given); given.ID == nil {
		spec.ID = s.freeID()
	}
	return s.changed(spec.ID, s.router.Add(spec))
}

// freeID is the smallest id that no rank has.
func (s *server) freeID() (id int32) {
	for ; ; id++ {
		if _, taken := s.router.Rank(id); !taken {
			return id
		}
	}
}

func (s *server) servePatchRank(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := s.reader.Body(w, r)
	if err != nil {
		return nil, err
	}
	i, err := s.rank(r)
	if err != nil {
		return nil, err
	}
	return s.changed(i.ID, s.patch(i.ID, body))
}

// patch changes the fields of a rank that the body has, one request at a time.
func (s *server) patch(id int32, body []byte) error {
	s.patching.Lock()
	defer s.patching.Unlock()
	i, ok := s.router.Rank(id)
	if !ok {
		return fmt.Errorf("update rank %d: %w", id, route.ErrUnknownRank)
	}
	spec := i.Rank
	if err := registry.Merge(&spec, body); err != nil {
		return err
	}
	if spec.ID != id {
		return errors.New("the id of a rank cannot be changed")
	}
	return s.router.Update(spec)
}

// changed returns the rank as it is now, or the reason why it was not changed.
func (s *server) changed(id int32, err error) (any, error) {
	for is, answer := range map[error]struct {
		status int
		code   string
	}{
		route.ErrRankExists: {http.StatusConflict, "rank_exists"}, route.ErrUnknownRank: {http.StatusNotFound, "unknown_rank"},
		route.ErrMismatch: {http.StatusConflict, "mismatch"}, route.ErrTooManyRanks: {http.StatusConflict, "too_many_ranks"},
	} {
		if errors.Is(err, is) {
			return nil, fail(answer.status, answer.code, err.Error())
		}
	}
	if err != nil {
		return nil, fail(http.StatusBadRequest, "invalid_rank", err.Error())
	}
	s.checks.again()
	i, ok := s.router.Rank(id)
	if !ok { // removed since
		return nil, fail(http.StatusNotFound, "unknown_rank", "the rank was removed")
	}
	return i, nil
}

// Removal is the answer to the removal of a rank.
type Removal struct {
	// InFlight is how many requests were there.
	InFlight int `json:"in_flight"`
}

func (s *server) serveDeleteRank(_ http.ResponseWriter, r *http.Request) (any, error) {
	i, err := s.rank(r)
	if err != nil {
		return nil, err
	}
	n, err := s.router.Remove(i.ID)
	if err != nil {
		return s.changed(i.ID, err)
	}
	return Removal{InFlight: n}, nil
}
