// Package integration holds the tests that run kvconn whole: the real daemon binary or a
// daemon in the test's process on a disk that fails as told, real files, and an engine that
// turns wrong KV into wrong tokens, with its ranks, or all of it, in processes of their own.
// Every row of the failure table is here. KVCONN_TEST_LONG=1 runs more rounds and variants.
// The engine plugins are in python/, the tests against vLLM in vllm/.
package integration
