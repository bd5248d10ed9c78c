// Package route is the router as a library: it knows the ranks of each model, keeps the prefix index fed
// with what engines and stores say, tracks what is in flight, and decides where a request goes.
//
// A decision is one walk of the prefix index, which hashes the prompt's tokens only as far as some rank
// has them, then the policy on the loads of that moment, then the booking of the request and a prediction
// that the chosen rank will have its blocks. It allocates nothing after the first ones, but for what the
// index needs to remember blocks that are new.
//
// Ranks come and go while decisions are made. Each decision is of one set of ranks; a rank that was
// removed or is not ready is never chosen.
package route
