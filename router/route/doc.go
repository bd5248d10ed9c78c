// Package route is the router as a library: it knows the ranks of each model, keeps the prefix index fed
// with the events of engines and stores, tracks what is in flight, and decides where a request goes.
//
// A decision walks the prefix index, which hashes the prompt's tokens only up to where no rank has them, asks
// the policy with the loads of that moment, books the request and predicts that the chosen rank will have its
// blocks. After the first ones it allocates only what the index needs to remember new blocks.
//
// Ranks come and go while decisions are made. Each decision is of one set of ranks; a rank that was
// removed or is not ready is never chosen.
package route
