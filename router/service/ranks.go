package service

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// RankList is the answer of GET /v1/ranks.
type RankList struct {
	Ranks []route.RankInfo `json:"ranks"`
}

func (s *server) serveRanks(w http.ResponseWriter, _ *http.Request) {
	httpserve.WriteJSON(w, http.StatusOK, RankList{Ranks: s.router.Ranks()})
}

func (s *server) serveRank(w http.ResponseWriter, r *http.Request) {
	if i, ok := s.rank(w, r); ok {
		httpserve.WriteJSON(w, http.StatusOK, i)
	}
}

// rank returns the rank that the path names. If there is none it answers itself.
func (s *server) rank(w http.ResponseWriter, r *http.Request) (i route.RankInfo, ok bool) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 32)
	if err == nil {
		i, ok = s.router.Rank(int32(id))
	}
	if !ok {
		fail(w, http.StatusNotFound, "unknown_rank", fmt.Sprintf("no rank %.32q", r.PathValue("id")))
	}
	return i, ok
}

func (s *server) serveAddRank(w http.ResponseWriter, r *http.Request) {
	body, err := s.reader.Body(w, r)
	if err != nil {
		front.ErrorOf(err).Write(w)
		return
	}
	spec, err := registry.Parse(body)
	if err == nil {
		err = s.router.Add(spec)
	}
	s.changed(w, http.StatusCreated, spec.ID, err)
}

func (s *server) servePatchRank(w http.ResponseWriter, r *http.Request) {
	body, err := s.reader.Body(w, r)
	if err != nil {
		front.ErrorOf(err).Write(w)
		return
	}
	i, ok := s.rank(w, r)
	if !ok {
		return
	}
	id := i.ID
	s.changed(w, http.StatusOK, id, s.patch(id, body))
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

// changed answers with the rank as it is now, or with the reason why it was not changed.
func (s *server) changed(w http.ResponseWriter, status int, id int32, err error) {
	for is, answer := range map[error]struct {
		status int
		code   string
	}{
		route.ErrRankExists: {http.StatusConflict, "rank_exists"}, route.ErrUnknownRank: {http.StatusNotFound, "unknown_rank"},
		route.ErrMismatch: {http.StatusConflict, "mismatch"}, route.ErrTooManyRanks: {http.StatusConflict, "too_many_ranks"},
	} {
		if errors.Is(err, is) {
			fail(w, answer.status, answer.code, err.Error())
			return
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_rank", err.Error())
		return
	}
	s.checks.again()
	i, ok := s.router.Rank(id)
	if !ok { // removed since
		fail(w, http.StatusNotFound, "unknown_rank", "the rank was removed")
		return
	}
	httpserve.WriteJSON(w, status, i)
}

// Removal is the answer to the removal of a rank.
type Removal struct {
	// InFlight is how many requests were there.
	InFlight int `json:"in_flight"`
}

func (s *server) serveDeleteRank(w http.ResponseWriter, r *http.Request) {
	i, ok := s.rank(w, r)
	if !ok {
		return
	}
	n, err := s.router.Remove(i.ID)
	if err != nil {
		s.changed(w, 0, i.ID, err)
		return
	}
	httpserve.WriteJSON(w, http.StatusOK, Removal{InFlight: n})
}
