// Package store is the seam between what moves KV cache blocks and the tiers that keep them: what
// a record is, how one is read and written, how long a prefix a tier has, and how fast it is.
// Package disk keeps records on local disk, package host in memory in front of any other tier.
package store
