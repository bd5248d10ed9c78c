// Package tokenize turns prompts into token ids: by asking an engine that serves the model (POST
// /tokenize, vLLM's and SGLang's form), or by reading the ids of a request that has them already.
package tokenize
