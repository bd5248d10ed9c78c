// Package registry describes the data-parallel ranks that the router chooses between: how each is
// reached, what is known of it beforehand, and which header pins a request to it.
//
// The configuration file, flags and the HTTP interface describe ranks in the same form.
package registry
