// Package front is what the router's HTTP interfaces have in common, decisions (package service) and completions
// (package proxy): how a request is read and understood, and how an error is answered.
package front
