// Package connector is the contract between an LLM engine and kvconnd: the types that
// name a block (key, proof, scope, namespace), describe engine memory (layout), and
// carry a request through its life (match, step, load, save), together with the hash
// chains that every part computes the same way. The framed protocol that transports
// them is in package wire, its two ends in packages client and server; the order in which
// an engine calls is the contract of server.Scheduler and server.Worker. Package fence is
// how an engine takes its memory back without an answer.
//
// The package knows nothing of disks, CUDA or scoring, and imports no other part of
// kvconn.
package connector
