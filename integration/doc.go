// Package integration holds the tests that run kvconn whole: the real daemon binary,
// real files, and an engine that turns wrong KV into wrong tokens. The engine plugins
// are in python/, the tests against vLLM in vllm/.
package integration
