// Package object is the object tier: records in a bucket of an S3 server, shared by all nodes of a
// deployment. It packs what is written into data objects, tells the other nodes by lists, and knows by
// theirs what is there, so that look-ups cost no request. docs/adr/0016-object-tier.md says why it is as it
// is, docs/object-format.md which bytes lie in the bucket.
package object
