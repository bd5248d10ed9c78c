// Package proxy forwards OpenAI completions to the rank that the router chooses: /v1/completions and
// /v1/chat/completions, streams passed through as they come.
//
// Until the first byte of an answer is there, a rank that refuses, dies or is silent costs another try on
// another rank; after it the answer is that rank's, whatever happens. Clients' mistakes are never tried
// again. A client that leaves ends the request on the engine.
package proxy
