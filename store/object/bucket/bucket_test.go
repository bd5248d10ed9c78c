package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
)

const (
	testID      = "AKIDtestidtestidtest"
	testSecret  = "secret/of+the=test"
	testSession = "session-of-the-test"
)

// bench is a bucket on a server in memory, with a proxy between.
type bench struct {
	*Bucket
	server *s3mem.Server
	proxy  *s3proxy.Proxy
	log    *testlog.Text
}

// open opens a bucket for a test in a bubble, where its waits take no time.
func open(t *testing.T, server s3mem.Options, change func(*Options)) *bench {
	t.Helper()
	b := &bench{server: s3mem.New(server, "bucket"), log: &testlog.Text{}}
	b.proxy = s3proxy.New(b.server)
	o := Options{
		URL: "s3://bucket/some/prefix/", Endpoint: "http://s3.test:9000", Region: "here",
		Keys: &Keys{testID, testSecret, testSession}, Transport: s3proxy.Direct(b.proxy),
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if b.Bucket, err = Open(o); err != nil {
		t.Fatal(err)
	}
	return b
}

// inBubble runs a test where time passes at once.
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, open(t, s3mem.Options{}, nil)) })
}

func (b *bench) write(t *testing.T, name, text string, c Condition) (Meta, error) {
	t.Helper()
	return b.Put(t.Context(), name, strings.NewReader(text), int64(len(text)), c)
}

func (b *bench) mustWrite(t *testing.T, name, text string) Meta {
	t.Helper()
	m, err := b.write(t, name, text, Condition{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (b *bench) read(ctx context.Context, name string, from, n int64) (string, Meta, error) {
	body, err := b.Get(ctx, name, from, n)
	if err != nil {
		return "", Meta{}, err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err == nil && int64(len(got)) != body.Length {
		err = fmt.Errorf("%d bytes, announced %d", len(got), body.Length)
	}
	return string(got), body.Meta, err
}

// want checks the cause of an error, and that it says nothing of the credentials.
func want(t *testing.T, err, cause error) {
	t.Helper()
	var e *Error
	if !errors.Is(err, cause) || !errors.As(err, &e) {
		t.Errorf("%v, want: %v", err, cause)
	}
	noSecret(t, fmt.Sprintf("%v %+v %#v", err, err, err))
}

func noSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{testID, testSecret, testSession} {
		if strings.Contains(text, secret) {
			t.Errorf("%q has %q in it", text, secret)
		}
	}
}

func TestObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		put := b.mustWrite(t, "d/a", "0123456789")
		if put.ETag == "" || put.Now.IsZero() || put.Bytes != 10 || put.Name != "d/a" {
			t.Errorf("%+v", put)
		}
		time.Sleep(time.Hour)
		for _, c := range []struct {
			from, bytes int64
			want        string
		}{{0, 0, "0123456789"}, {0, 3, "012"}, {4, 3, "456"}, {8, 0, "89"}, {8, 20, "89"}, {0, 10, "0123456789"}, {0, 20, "0123456789"}} {
			got, m, err := b.read(t.Context(), "d/a", c.from, c.bytes)
			if err != nil || got != c.want {
				t.Errorf("%+v: %q, %v", c, got, err)
			}
			if m.ETag != put.ETag || m.Bytes != 10 || !m.Now.Equal(time.Now()) || m.Now.Sub(m.Modified) != time.Hour {
				t.Errorf("%+v", m)
			}
		}
		for from, cause := range map[int64]error{10: ErrRange, -1: ErrRefused} {
			_, _, err := b.read(t.Context(), "d/a", from, 1)
			want(t, err, cause)
		}
		_, _, err := b.read(t.Context(), "d/b", 0, 0)
		want(t, err, ErrMissing)
		if err := b.Delete(t.Context(), []string{"d/a", "d/b"}); err != nil {
			t.Error(err)
		}
		if err := b.Delete(t.Context(), []string{"d/a"}); err != nil {
			t.Error(err)
		}
		if err := b.Delete(t.Context(), nil); err != nil {
			t.Error(err)
		}
		_, _, err = b.read(t.Context(), "d/a", 0, 0)
		want(t, err, ErrMissing)
		st := b.Stats()
		if st.Requests["get"] != 10 || st.Requests["put"] != 1 || st.Requests["delete"] != 2 || st.Errors["missing"] != 2 || st.Errors["range"] != 1 || st.Retries != 0 {
			t.Errorf("%+v", st)
		}
		if st.WrittenBytes != 10 || st.ReadBytes != 40 {
			t.Errorf("%d written, %d read", st.WrittenBytes, st.ReadBytes)
		}
	})
}

func TestNamesAreBelowThePrefix(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "d/a", "1")
		if b.String() != "s3://bucket/some/prefix" {
			t.Error(b)
		}
		other, err := Open(Options{URL: "s3://bucket", Endpoint: "http://s3.test", Region: "here", Keys: &Keys{ID: testID, Secret: testSecret}, Transport: s3proxy.Direct(b.server)})
		if err != nil {
			t.Fatal(err)
		}
		list, err := other.List(t.Context(), "", "", 10)
		if err != nil || len(list) != 1 || list[0].Name != "some/prefix/d/a" {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

func TestLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{PageKeys: 3}, nil)
		var all []string
		for i := range 8 {
			all = append(all, fmt.Sprintf("in/%d", i))
			b.mustWrite(t, all[i], "1")
		}
		b.mustWrite(t, "log/1", "1")
		for _, c := range []struct {
			prefix, after string
			most          int
			want          []string
			pages         uint64
		}{
			{"in/", "", 100, all, 3},
			{"in/", "in/4", 100, all[5:], 1},
			{"in/", "in/4x", 2, all[5:7], 1},
			{"in/", "", 3, all[:3], 1},
			{"in/", "", 4, all[:4], 2},
			{"x/", "", 4, nil, 1},
			{"", "in/6", 9, []string{"in/7", "log/1"}, 1},
			{"in/", "", 0, nil, 0},
		} {
			before := b.Stats().Requests["list"]
			list, err := b.List(t.Context(), c.prefix, c.after, c.most)
			var got []string
			for _, m := range list {
				got = append(got, m.Name)
				if m.Bytes != 1 || m.ETag == "" || strings.Contains(m.ETag, `"`) || m.Now.IsZero() || m.Modified.IsZero() {
					t.Errorf("%+v", m)
				}
			}
			if pages := b.Stats().Requests["list"] - before; err != nil || !slices.Equal(got, c.want) || pages != c.pages {
				t.Errorf("%+v: %q in %d pages, %v", c, got, pages, err)
			}
		}
		// A page that fails is asked for again, and those before it are not.
		b.proxy.Play(s3proxy.Clause{On: s3proxy.List, After: 1, For: 1, Do: s3proxy.Effect{Cut: 40}})
		before := b.Stats().Requests["list"]
		list, err := b.List(t.Context(), "in/", "", 100)
		if pages := b.Stats().Requests["list"] - before; err != nil || len(list) != 8 || pages != 4 {
			t.Errorf("%d names in %d pages, %v", len(list), pages, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.List(ctx, "in/", "", 100); !errors.Is(err, context.Canceled) {
			t.Errorf("%v: a list that was broken off is no list", err)
		}
	})
}

func TestManyAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, nil)
		var names []string
		for i := range 1002 {
			names = append(names, fmt.Sprintf("d/%04d", i))
		}
		b.mustWrite(t, names[0], "1")
		b.mustWrite(t, names[1001], "1")
		if err := b.Delete(t.Context(), names); err != nil {
			t.Error(err)
		}
		if n := b.server.Counts().DeleteMany; n != 2 {
			t.Errorf("%d requests", n)
		}
		list, err := b.List(t.Context(), "", "", 10)
		if err != nil || len(list) != 0 {
			t.Errorf("%+v are left, %v", list, err)
		}
		// Where the server cannot, one goes after the other, from then on.
		b.proxy.Play(s3proxy.Clause{On: s3proxy.DeleteMany, Do: s3proxy.Effect{Status: 501, Code: "NotImplemented"}})
		for range 2 {
			b.mustWrite(t, "d/a", "1")
			if err := b.Delete(t.Context(), []string{"d/a", "d/b", "d/c"}); err != nil {
				t.Error(err)
			}
			_, _, err := b.read(t.Context(), "d/a", 0, 0)
			want(t, err, ErrMissing)
		}
		if c := b.server.Counts(); c.Delete != 6 || b.proxy.Injected() != 1 {
			t.Errorf("%+v, %d", c, b.proxy.Injected())
		}
	})
}

func TestConditionsAreTriedFirst(t *testing.T) {
	for conditions, kept := range map[s3mem.Conditions]bool{s3mem.Honoured: true, s3mem.Ignored: false, s3mem.Refused: false} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, s3mem.Options{Conditions: conditions}, nil)
			if b.Conditional() {
				t.Error("conditions are sent before it is known that they are kept")
			}
			if err := b.Try(t.Context(), "probe/me"); err != nil || b.Conditional() != kept {
				t.Errorf("%v: conditional: %v, %v", conditions, b.Conditional(), err)
			}
			if c := b.server.Counts(); c.Put > 4 || c.Requests() > 5 || b.server.Bytes() != 0 {
				t.Errorf("%+v, %d bytes are left", c, b.server.Bytes())
			}
			first, err := b.write(t, "a", "1", Condition{Absent: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []Condition{{Absent: true}, {ETag: "other"}} {
				if _, err := b.write(t, "a", "2", c); kept != errors.Is(err, ErrCondition) || !kept && err != nil {
					t.Errorf("%v, %+v: %v", conditions, c, err)
				}
			}
			if _, err := b.write(t, "a", "1", Condition{ETag: first.ETag}); kept && err != nil {
				t.Error(err)
			}
			if _, err := b.write(t, "none", "1", Condition{ETag: first.ETag}); kept != errors.Is(err, ErrCondition) {
				t.Error(err)
			}
		})
	}
}

func TestATrialThatEndedEarlyIsNoObstacle(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "probe/me", "left")
		if err := b.Try(t.Context(), "probe/me"); err != nil || !b.Conditional() {
			t.Errorf("%v, %v", b.Conditional(), err)
		}
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Do: s3proxy.Effect{Status: 403, Code: "AccessDenied"}})
		want(t, b.Try(t.Context(), "probe/me"), ErrDenied)
	})
}

// A Put whose answer was lost is sent again, and finds its own object.
func TestALostAnswerIsNoFailedCondition(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		if err := b.Try(t.Context(), "probe"); err != nil {
			t.Fatal(err)
		}
		lost := s3proxy.Clause{On: s3proxy.Put, For: 1, Do: s3proxy.Effect{Lost: true}}
		b.proxy.Play(lost)
		m, err := b.write(t, "a", "mine", Condition{Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		b.proxy.Play(lost)
		if m, err = b.write(t, "a", "mine too", Condition{ETag: m.ETag}); err != nil {
			t.Fatal(err)
		}
		if got, now, err := b.read(t.Context(), "a", 0, 0); err != nil || got != "mine too" || now.ETag != m.ETag {
			t.Errorf("%q, %+v, %v; was %+v", got, now, err, m)
		}
		// Another's object is another's, even if an answer was lost.
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Put, For: 1, Do: s3proxy.Effect{Reset: true}})
		_, err = b.write(t, "a", "mine too?", Condition{Absent: true})
		want(t, err, ErrCondition)
		if st := b.Stats(); st.Retries != 3 {
			t.Errorf("%+v", st)
		}
	})
}

// blank answers reads as proxies do that have no route for them.
type blank struct{ http.RoundTripper }

func (b blank) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return b.RoundTripper.RoundTrip(r)
	}
	return &http.Response{Status: "404 Not Found", StatusCode: 404, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), Body: http.NoBody, Request: r}, nil
}

// A server of S3 says in words that an object is missing: a 404 without any is a proxy's.
func TestABlankAnswerIsNoMissingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, func(o *Options) { o.Transport = blank{o.Transport} })
		b.mustWrite(t, "d/a", "0123456789")
		_, _, err := b.read(t.Context(), "d/a", 2, 3)
		want(t, err, ErrUnavailable)
	})
}

func TestCauses(t *testing.T) {
	for _, c := range []struct {
		do       s3proxy.Effect
		cause    error
		counted  string
		attempts uint64
	}{
		{s3proxy.Effect{Status: 404, Code: "NoSuchKey"}, ErrMissing, "missing", 1},
		{s3proxy.Effect{Status: 404, Code: "NoSuchBucket"}, ErrNoBucket, "no_bucket", 1},
		{s3proxy.Effect{Status: 416, Code: "InvalidRange"}, ErrRange, "range", 1},
		{s3proxy.Effect{Status: 403, Code: "AccessDenied"}, ErrDenied, "denied", 1},
		{s3proxy.Effect{Status: 403, Code: "Unheard"}, ErrDenied, "denied", 1},
		{s3proxy.Effect{Status: 403, Code: "ExpiredToken"}, ErrCredentials, "credentials", 2},
		{s3proxy.Effect{Status: 400, Code: "ExpiredToken"}, ErrCredentials, "credentials", 2},
		{s3proxy.Effect{Status: 403, Code: "InvalidAccessKeyId"}, ErrCredentials, "credentials", 2},
		{s3proxy.Effect{Status: 403, Code: "SignatureDoesNotMatch"}, ErrCredentials, "credentials", 2},
		{s3proxy.Effect{Status: 400, Code: "AuthorizationHeaderMalformed"}, ErrCredentials, "credentials", 1},
		{s3proxy.Effect{Status: 403, Code: "InvalidObjectState"}, ErrArchived, "archived", 1},
		{s3proxy.Effect{Status: 403, Code: "RequestTimeTooSkewed"}, ErrClock, "clock", 1},
		{s3proxy.Effect{Status: 503, Code: "SlowDown"}, ErrThrottled, "throttled", 3},
		{s3proxy.Effect{Status: 429, Code: "TooManyRequests"}, ErrThrottled, "throttled", 3},
		{s3proxy.Effect{Status: 500, Code: "InternalError"}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Status: 503, Code: "ServiceUnavailable"}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Status: 507, Code: "InsufficientStorage"}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Status: 400, Code: "RequestTimeout"}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Status: 501, Code: "NotImplemented"}, ErrRefused, "refused", 1},
		{s3proxy.Effect{Status: 405, Code: "MethodNotAllowed"}, ErrRefused, "refused", 1},
		{s3proxy.Effect{Page: 404}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Status: 404, Code: "XAdminUserNotFound"}, ErrCredentials, "credentials", 1},
		{s3proxy.Effect{Status: 404, Code: "Unheard"}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Page: 403}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Page: 502}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Reset: true}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Delay: time.Hour}, ErrUnavailable, "unavailable", 3},
		{s3proxy.Effect{Whole: true}, ErrDamaged, "damaged", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts, o.Silence = 3, time.Hour })
			b.mustWrite(t, "d/a", "0123456789")
			b.proxy.Play(s3proxy.Clause{Do: c.do})
			began := time.Now()
			_, _, err := b.read(t.Context(), "d/a", 2, 3)
			want(t, err, c.cause)
			st := b.Stats()
			if st.Requests["get"] != c.attempts || st.Errors[c.counted] != c.attempts || st.Retries != c.attempts-1 {
				t.Errorf("%+v: %v: %+v", c.do, err, st)
			}
			if took := time.Since(began); took > 31*time.Second {
				t.Errorf("%+v took %v", c.do, took)
			}
			if c.cause != ErrMissing && c.cause != ErrRange && c.cause != ErrDamaged && Remedy(err) == "" {
				t.Errorf("%v: nothing can be done", err)
			}
		})
	}
}

func TestCausesOfAPut(t *testing.T) {
	for code, status := range map[string]int{"PreconditionFailed": 412, "ConditionalRequestConflict": 409, "OperationAborted": 409, "NoSuchKey": 404, "Unheard": 409} {
		inBubble(t, func(t *testing.T, b *bench) {
			b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Status: status, Code: code}})
			_, err := b.write(t, "a", "1", Condition{ETag: "x"})
			want(t, err, ErrCondition)
		})
	}
}

func TestBodiesThatEndEarlyOrStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		text := strings.Repeat("0123456789", 1000)
		b.mustWrite(t, "a", text)
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Cut: 100}})
		got, _, err := b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrDamaged)
		if got != text[:100] {
			t.Errorf("%q", got)
		}
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Stall: time.Hour}})
		began := time.Now()
		got, _, err = b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrUnavailable)
		if took := time.Since(began); took != defaultStall || got != text[:5000] {
			t.Errorf("%d bytes after %v", len(got), took)
		}
	})
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "a", "0123456789")
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Stall: time.Hour}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, context.DeadlineExceeded)
		if !b.Available() {
			t.Error("a deadline of the caller's says nothing of the bucket")
		}
	})
}

// A server may refuse a Put before it has read the body: then every answer is lost with the connection.
func TestEveryAnswerLost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		if err := b.Try(t.Context(), "probe"); err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("kv", 100000)
		before := b.Stats().Requests["put"]
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Put, Do: s3proxy.Effect{Lost: true}})
		if m, err := b.write(t, "a", text, Condition{Absent: true}); err != nil || m.ETag == "" {
			t.Errorf("%+v, %v", m, err)
		}
		if _, err := b.write(t, "a", text[2:], Condition{Absent: true}); !errors.Is(err, ErrCondition) {
			t.Errorf("another's object: %v", err)
		}
		if _, err := b.write(t, "none", text, Condition{ETag: "x"}); !errors.Is(err, ErrCondition) {
			t.Errorf("an object that is not there: %v", err)
		}
		if puts := b.Stats().Requests["put"] - before; puts != 3 {
			t.Errorf("%d requests: an object that is there is not sent again", puts)
		}
	})
}

func TestFailuresPass(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.proxy.Play(
			s3proxy.Clause{For: 1, Do: s3proxy.Effect{Reset: true}},
			s3proxy.Clause{After: 1, For: 1, Do: s3proxy.Effect{Status: 503, Code: "SlowDown"}},
			s3proxy.Clause{After: 2, For: 1, Do: s3proxy.Effect{Lost: true}},
		)
		text := strings.Repeat("kv", 100000)
		if _, err := b.write(t, "a", text, Condition{}); err != nil {
			t.Fatal(err)
		}
		b.proxy.Stop()
		if got, _, err := b.read(t.Context(), "a", 0, 0); err != nil || got != text {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if st := b.Stats(); st.Retries != 3 || st.Requests["put"] != 4 {
			t.Errorf("%+v", st)
		}
	})
}

func TestCallersThatLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Hour}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, context.DeadlineExceeded)
		_, err = b.Put(ctx, "a", bytes.NewReader([]byte("1")), 1, Condition{})
		want(t, err, context.DeadlineExceeded)
		if time.Since(began) != time.Second {
			t.Errorf("after %v", time.Since(began))
		}
		if n := b.Stats().Requests["get"] + b.Stats().Requests["put"]; n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// The server's clock, and not this node's, is what times of the bucket are made of.
func TestTheClockIsTheBuckets(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		if !b.Now().IsZero() {
			t.Error(b.Now())
		}
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Skew: -2 * time.Hour}})
		m := b.mustWrite(t, "a", "1")
		at := time.Now().Add(-2 * time.Hour)
		if !m.Now.Equal(at) || b.Skew().Round(time.Second) != -2*time.Hour {
			t.Errorf("%v, want %v; skew %v", m.Now, at, b.Skew())
		}
		time.Sleep(time.Minute)
		if !b.Now().Equal(at.Add(time.Minute)) {
			t.Errorf("%v, want %v", b.Now(), at.Add(time.Minute))
		}
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Status: 403, Code: "RequestTimeTooSkewed"}})
		_, err := b.write(t, "a", "1", Condition{})
		want(t, err, ErrClock)
		if !strings.Contains(err.Error(), "clock is 0s ahead") || !strings.Contains(Remedy(err), "clock") {
			t.Errorf("%v: %s", err, Remedy(err))
		}
	})
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perS = 1 << 20
		b := open(t, s3mem.Options{}, func(o *Options) { o.UploadBytesPerS, o.DownloadBytesPerS = perS, perS/2 })
		text := strings.Repeat("x", 8*perS)
		began := time.Now()
		b.mustWrite(t, "a", text)
		if took := time.Since(began).Seconds(); took < 7.8 || took > 8.1 {
			t.Errorf("8 MiB up took %v s", took)
		}
		began = time.Now()
		if got, _, err := b.read(t.Context(), "a", 0, 0); err != nil || got != text {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if took := time.Since(began).Seconds(); took < 15.6 || took > 16.1 {
			t.Errorf("8 MiB down took %v s", took)
		}
		if !b.Available() {
			t.Error("waits for a rate are taken for silence")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, context.DeadlineExceeded)
		_, err = b.Put(ctx, "a", strings.NewReader(text), int64(len(text)), Condition{})
		want(t, err, context.DeadlineExceeded)
	})
}

// The library asks for the region once where none is given.
func TestRegionIsAskedForOnce(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{Region: "there"}, func(o *Options) { o.Region = "" })
		b.mustWrite(t, "a", "1")
		b.mustWrite(t, "b", "1")
		if st := b.Stats(); st.Requests["location"] != 1 || st.Requests["put"] != 2 || b.server.Counts().Bucket != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// Names of hosts and paths are those of the style.
func TestStyles(t *testing.T) {
	for _, c := range []struct{ endpoint, style, want string }{
		{"http://127.0.0.1:9000", StyleAuto, "http://127.0.0.1:9000/bucket/some/prefix/a"},
		{"https://minio.example", StyleAuto, "https://minio.example/bucket/some/prefix/a"},
		{"https://minio.example", StyleVirtual, "https://bucket.minio.example/some/prefix/a"},
		{"", StyleAuto, "https://bucket.s3.us-west-2.amazonaws.com/some/prefix/a"},
		{"", StylePath, "https://s3.us-west-2.amazonaws.com/bucket/some/prefix/a"},
	} {
		var asked string
		b := open(t, s3mem.Options{}, func(o *Options) {
			o.Endpoint, o.Style, o.Region, o.Attempts = c.endpoint, c.style, "us-west-2", 1
			o.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				asked = r.URL.String()
				return nil, errors.New("nobody is there")
			})
		})
		_, _, err := b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrUnavailable)
		if asked != c.want {
			t.Errorf("%+v: %s", c, asked)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
