package proxy

import (
	"net/http"

	"github.com/kvconn/kvconn/router/policy"
)

// Refusal is how a request is answered that no rank takes: the status, and what a person can make of it.
func Refusal(why policy.Reason) (status int, message string) {
	status, message = http.StatusServiceUnavailable, "no rank takes the request"
	switch why {
	case policy.ReasonNoRanks:
		message = "no rank is ready that could take the request; GET /v1/ranks says why not"
	case policy.ReasonAllFull:
		message = "all ranks that are ready are full: max_active or max_tokens"
	case policy.ReasonFairShare:
		message = "all ranks that are ready have had their fair share"
	case policy.ReasonPinUnknown:
		status, message = http.StatusNotFound, "there is no rank of the number that the request is pinned to, for this model"
	case policy.ReasonPinNotReady:
		message = "the rank that the request is pinned to is not ready, or has failed it; GET /v1/ranks says why"
	case policy.ReasonPinFull:
		message = "the rank that the request is pinned to is full: max_active or max_tokens"
	case policy.ReasonInvalid:
		status, message = http.StatusBadRequest, "the request cannot be routed: a number in it is out of range"
	}
	return status, message
}
