// Package proxy forwards OpenAI completions to the rank that the router chooses: /v1/completions and
// /v1/chat/completions, streams passed through as they come. Engines' other paths are forwarded by load.
//
// Until the first byte of an answer arrives, a request is tried on another rank if its rank refuses, dies or is
// silent. After it the answer is that rank's, whatever happens. Clients' mistakes are never tried again. A client
// that leaves ends the request on the engine.
package proxy
