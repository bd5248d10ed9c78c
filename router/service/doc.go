// Package service is the router over HTTP: `kvconnd router`. It serves decisions, reports, the ranks and
// their prefixes as JSON, forwards OpenAI completions, and watches the engines' health.
//
// openapi.yaml describes the interface.
package service
