// Package model is a small decoder-only transformer in plain Go: RMSNorm before and
// after each attention and feed-forward part, rotary positions, grouped-query attention
// over a paged KV cache, SwiGLU, float32 throughout, weights drawn from a seed.
//
// It promises two things that make it useful for checking a KV cache. Every token's
// numbers are computed by the same operations in the same order, whatever else is in the
// batch and wherever a prompt is cut into chunks, so that equal KV gives equal logits to
// the last bit. And the weights are scaled so that the logits depend on the whole
// prompt, so that wrong KV gives other tokens.
package model
