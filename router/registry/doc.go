// Package registry describes the data-parallel ranks that the router chooses between: how each is
// reached, what is known of it beforehand, and which header pins a request to it.
//
// A description comes from the configuration file, a flag or the HTTP interface, in one form
// everywhere.
package registry
