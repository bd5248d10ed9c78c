// Package replay runs a recorded trace of requests through a model of data-parallel ranks with
// their GPU caches, the disks of their nodes, an object store and a routing policy. It tells hit rates
// by tier, how evenly the work is spread, estimated times to first token, and how large a disk has to
// be. The policies are those of router/policy, fed by router/inflight on the trace's clock.
//
// # The model
//
// Requests arrive when the trace says, or each after the one before ([Options.Sequential]). The policy
// places each on a rank by the prefix that every rank has at that moment and the load as the router
// tracks it. A rank serves its prompts in order, one at a time:
//
//   - It takes GPU blocks for the whole prompt, the least recently used ones that no running request
//     holds, and waits while there are too few. A request holds its blocks until its last token.
//   - Of the prefix that it then finds on the tiers it loads as much as makes loading and computing
//     together shortest, judged by the bandwidth that is free at that moment, or all of it
//     ([Options.AlwaysLoad]). All loads of a node share the disk's bandwidth equally, and the node's
//     bandwidth to the object store. Disk and object store deliver at the same time.
//   - It computes the rest at a fixed number of tokens a second; the end of that is the first token.
//     With [Options.OverlapLoads] prompts load while the rank computes others.
//   - Its prompt is now on the node's disk and in the object store, and counts as just used; both evict
//     the least recently used block, the end of a prompt first. Blocks that the disk is too slow to write
//     are dropped ([Options.SaveBytesPerS]).
//   - It decodes at a fixed time for each token, beside the others, up to [Options.MaxRunning].
//
// Not in the model: what attention adds to long prompts, decoding and prefill slowing each other,
// bandwidth that writes take from reads, blocks that outputs fill (the trace does not say what they hold;
// the next turn computes them and counts them as misses), hits on blocks that are still being computed.
//
// # The drawing
//
// [Report.Plot] draws with the 270 lines of plot.go. The same with gonum.org/v1/plot takes
// 140, but adds 8 modules and 7.3 MB to a program of 25.7 MB, and its legends have neither box nor background
// and overlap the lines. Others that draw SVG are no longer maintained, or need fonts, too.
package replay
