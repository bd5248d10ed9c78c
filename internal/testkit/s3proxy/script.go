// Package s3proxy stands between an S3 client and a server, and does to requests and answers what a
// script says: the faults of a bucket.
//
//	p := s3proxy.New(s3mem.New(s3mem.Options{}, "bucket"))
//	p.Play(
//		s3proxy.Clause{On: s3proxy.Get, Name: "kv1/d/**", After: 2, For: 3, Do: s3proxy.Effect{Status: 503, Code: "SlowDown"}},
//		s3proxy.Clause{On: s3proxy.Put, Every: 5, Do: s3proxy.Effect{Lost: true}},
//	)
//
// [New] puts it before any handler, [To] makes one of a server's address. [Direct] is the transport
// of a client that calls a handler without sockets, for tests in testing/synctest.
package s3proxy

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
)

// Kind is a kind of request. The bucket's name has to be in the path.
type Kind string

// The kinds of requests. Any, in a clause, is all of them.
const (
	Any        Kind = ""
	Get        Kind = "get"
	Head       Kind = "head"
	Put        Kind = "put"
	Delete     Kind = "delete"
	DeleteMany Kind = "delete-many"
	List       Kind = "list"
	Bucket     Kind = "bucket"
)

// Effect is what a clause does to a request. One of its fields is set, or Status and Code.
type Effect struct {
	// Delay is how long the request waits before it is passed on.
	Delay time.Duration
	// Stall is how long the answer waits in the middle of its body.
	Stall time.Duration
	// Status and Code are answered, as an error of S3; the request is not passed on.
	Status int
	Code   string
	// Page answers with this status and a page of HTML, as proxies do.
	Page int
	// Reset closes the connection; the request is not passed on.
	Reset bool
	// Lost passes the request on and closes the connection before the answer.
	Lost bool
	// Cut closes the connection after this many bytes of the answer's body.
	Cut int64
	// Flip is the number of bits that are flipped in the body: that of a PUT on its way to the
	// server, that of any answer on its way back.
	Flip int
	// Whole takes the range out of a GET.
	Whole bool
	// Rate is how many requests a second are passed on. Others are told to slow down.
	Rate int
	// Skew is added to the server's clock, as the answer's Date shows it.
	Skew time.Duration
}

// Clause is one fault. The zero value of a condition is no condition.
type Clause struct {
	On Kind
	// Name selects requests by the object's name, or the prefix that is listed: * stands for any
	// part of a name between slashes, DIR/** for all names below DIR.
	Name string
	// After is the number of such requests that are left alone first, For the number that the
	// clause acts on after them. Every acts on one request in Every.
	After, For, Every int64
	// Prob is the probability of acting on a request, drawn from Seed.
	Prob float64
	Seed uint64
	// Since and Until bound the time since the script began.
	Since, Until time.Duration
	Do           Effect
}

type state struct {
	Clause
	matched, acted int64
	random         *rand.Rand
	// second is when the present second of a rate began, passed what it let through.
	second time.Time
	passed int
}

// fires reports whether the clause acts on a request, and counts it.
func (c *state) fires(on Kind, name string, began, now time.Time) bool {
	since := now.Sub(began)
	switch {
	case c.On != Any && c.On != on,
		c.Name != "" && !fault.Match(c.Name, name),
		since < c.Since,
		c.Until > 0 && since >= c.Until:
		return false
	}
	c.matched++
	switch {
	case c.matched <= c.After,
		c.For > 0 && c.acted >= c.For,
		c.Every > 0 && (c.matched-c.After)%c.Every != 0,
		c.Prob > 0 && c.random.Float64() >= c.Prob,
		c.Do.Rate > 0 && c.pass(now):
		return false
	}
	c.acted++
	return true
}

// pass reports whether a clause with a rate lets a request through.
func (c *state) pass(now time.Time) bool {
	if now.Sub(c.second) >= time.Second {
		c.second, c.passed = now, 0
	}
	c.passed++
	return c.passed <= c.Do.Rate
}

// subject is what a request is about.
func subject(r *http.Request) (Kind, string) {
	_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	switch {
	case name == "" && query.Has("list-type"):
		return List, query.Get("prefix")
	case name == "" && query.Has("delete"):
		return DeleteMany, ""
	case name == "":
		return Bucket, ""
	case r.Method == http.MethodPut:
		return Put, name
	case r.Method == http.MethodDelete:
		return Delete, name
	case r.Method == http.MethodHead:
		return Head, name
	}
	return Get, name
}
