// Package discover finds the ranks of engines that come and go, and keeps a router's list of ranks the same: a file
// that is watched, a name in DNS with one address for each engine, or a Kubernetes Service, whose EndpointSlices are
// followed through the API server.
//
// A source that fails never takes ranks away: the last list that could be read holds until there is another. A rank
// that is in the list no more gets no new requests, and is removed once its requests have ended.
package discover
