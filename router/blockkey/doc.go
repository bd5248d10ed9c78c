// Package blockkey computes the keys by which the router's index knows the blocks of a prompt. Stores keep most engines'
// blocks under kvconn's own keys, and SGLang's under SGLang's hashes of pages. The router takes the keys of the model's
// stores for everything about the model, so that GPU, disk and bucket meet in one index.
package blockkey
