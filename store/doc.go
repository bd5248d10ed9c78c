// Package store is the seam between those who move KV cache blocks and the tiers that keep them:
// what a record is, how it is read and written, how long a prefix a tier has, and how fast it is. A
// [Chain] makes several tiers one. Package disk keeps records on local disk; package host is a cache
// in memory in front of any tier.
package store
