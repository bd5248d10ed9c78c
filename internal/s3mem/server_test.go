package s3mem

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// ask sends a request to a server. Headers are name and value by turns.
func ask(s *Server, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// expect checks status and, for errors, the code in the body.
func expect(t *testing.T, w *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	var e errorBody
	if w.Code >= 300 && w.Body.Len() > 0 {
		if err := xml.Unmarshal(w.Body.Bytes(), &e); err != nil {
			t.Errorf("%q is no error of S3: %v", w.Body, err)
		}
	}
	if w.Code != status || e.Code != code {
		t.Errorf("%d %s (%s), want %d %s", w.Code, e.Code, e.Message, status, code)
	}
}

func TestObjectsAreWrittenReadAndDeleted(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := New(Options{Now: func() time.Time { return now }}, "bucket")
	expect(t, ask(s, "GET", "/bucket/a/b", ""), 404, "NoSuchKey")
	put := ask(s, "PUT", "/bucket/a/b", "hello")
	expect(t, put, 200, "")
	now = now.Add(time.Minute)

	get := ask(s, "GET", "/bucket/a/b", "")
	expect(t, get, 200, "")
	h := get.Header()
	if get.Body.String() != "hello" || h.Get("ETag") != put.Header().Get("ETag") || h.Get("Content-Length") != "5" {
		t.Errorf("%q, %v, ETag was %s", get.Body, h, put.Header().Get("ETag"))
	}
	if h.Get("Last-Modified") != "Fri, 02 Jan 2026 03:04:05 GMT" || h.Get("Date") != "Fri, 02 Jan 2026 03:05:05 GMT" {
		t.Errorf("modified %s, now %s", h.Get("Last-Modified"), h.Get("Date"))
	}
	if head := ask(s, "HEAD", "/bucket/a/b", ""); head.Code != 200 || head.Body.Len() != 0 || head.Header().Get("Content-Length") != "5" {
		t.Errorf("HEAD: %d, %v", head.Code, head.Header())
	}
	expect(t, ask(s, "DELETE", "/bucket/a/b", ""), 204, "")
	expect(t, ask(s, "DELETE", "/bucket/a/b", ""), 204, "")
	if head := ask(s, "HEAD", "/bucket/a/b", ""); head.Code != 404 || head.Body.Len() != 0 {
		t.Errorf("HEAD of what is deleted: %d, %q", head.Code, head.Body)
	}
	if s.Bytes() != 0 {
		t.Errorf("%d bytes are left", s.Bytes())
	}
	want := Counts{Get: 2, Put: 1, Head: 2, Delete: 2, ReadBytes: 5, WrittenBytes: 5}
	if got := s.Counts(); got != want || got.Requests() != 7 {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestRanges(t *testing.T) {
	s := New(Options{}, "bucket")
	ask(s, "PUT", "/bucket/a", "0123456789")
	ask(s, "PUT", "/bucket/empty", "")
	for _, c := range []struct {
		key, header, body, content string
		status                     int
		code                       string
	}{
		{"a", "bytes=2-4", "234", "bytes 2-4/10", 206, ""},
		{"a", "bytes=0-0", "0", "bytes 0-0/10", 206, ""},
		{"a", "bytes=8-", "89", "bytes 8-9/10", 206, ""},
		{"a", "bytes=8-100", "89", "bytes 8-9/10", 206, ""},
		{"a", "bytes=-3", "789", "bytes 7-9/10", 206, ""},
		{"a", "bytes=-30", "0123456789", "bytes 0-9/10", 206, ""},
		{"a", "bytes=10-12", "", "bytes */10", 416, "InvalidRange"},
		{"a", "bytes=-0", "", "bytes */10", 416, "InvalidRange"},
		{"a", "bytes=5-2", "0123456789", "", 200, ""},
		{"a", "bytes=0-1,3-4", "0123456789", "", 200, ""},
		{"a", "lines=1-2", "0123456789", "", 200, ""},
		{"a", "bytes=99999999999999999999-", "0123456789", "", 200, ""},
		{"empty", "bytes=0-", "", "bytes */0", 416, "InvalidRange"},
		{"empty", "", "", "", 200, ""},
	} {
		w := ask(s, "GET", "/bucket/"+c.key, "", "Range", c.header)
		if w.Code < 300 && w.Body.String() != c.body || w.Header().Get("Content-Range") != c.content {
			t.Errorf("%s: %q, %s", c.header, w.Body, w.Header().Get("Content-Range"))
		}
		expect(t, w, c.status, c.code)
	}
}

func TestConditions(t *testing.T) {
	s := New(Options{}, "bucket")
	expect(t, ask(s, "PUT", "/bucket/a", "1", "If-Match", `"x"`), 404, "NoSuchKey")
	first := ask(s, "PUT", "/bucket/a", "1", "If-None-Match", "*")
	expect(t, first, 200, "")
	expect(t, ask(s, "PUT", "/bucket/a", "2", "If-None-Match", "*"), 412, "PreconditionFailed")
	expect(t, ask(s, "PUT", "/bucket/a", "2", "If-Match", `"x"`), 412, "PreconditionFailed")
	tag := first.Header().Get("ETag")
	expect(t, ask(s, "GET", "/bucket/a", "", "If-None-Match", tag), 304, "")
	expect(t, ask(s, "GET", "/bucket/a", "", "If-Match", `"x"`), 412, "PreconditionFailed")
	expect(t, ask(s, "GET", "/bucket/a", "", "If-Match", `"x", `+tag), 200, "")
	expect(t, ask(s, "PUT", "/bucket/a", "2", "If-Match", tag), 200, "")
	expect(t, ask(s, "PUT", "/bucket/a", "3", "If-Match", tag), 412, "PreconditionFailed")
	expect(t, ask(s, "GET", "/bucket/a", "", "If-None-Match", tag), 200, "")
	if got := ask(s, "GET", "/bucket/a", "").Body.String(); got != "2" {
		t.Errorf("%q is stored", got)
	}
	if want := (&object{data: []byte("2")}).cost("a"); s.Bytes() != want {
		t.Errorf("%d bytes, want %d: refused ones count", s.Bytes(), want)
	}
}

// Of racing writes that want a name to be free, one wins.
func TestOneOfRacingConditionalWritesWins(t *testing.T) {
	s := New(Options{}, "bucket")
	var won sync.Map
	var writers sync.WaitGroup
	for i := range 32 {
		writers.Go(func() {
			if ask(s, "PUT", "/bucket/a", strconv.Itoa(i), "If-None-Match", "*").Code == 200 {
				won.Store(i, true)
			}
		})
	}
	writers.Wait()
	winners := 0
	won.Range(func(_, _ any) bool { winners++; return true })
	if winners != 1 {
		t.Errorf("%d writers won", winners)
	}
}

func TestServersWithoutConditions(t *testing.T) {
	ignores, refuses := New(Options{Conditions: Ignored}, "bucket"), New(Options{Conditions: Refused}, "bucket")
	for range 2 {
		expect(t, ask(ignores, "PUT", "/bucket/a", "1", "If-None-Match", "*"), 200, "")
		expect(t, ask(ignores, "PUT", "/bucket/a", "1", "If-Match", `"x"`), 200, "")
		expect(t, ask(refuses, "PUT", "/bucket/a", "1", "If-None-Match", "*"), 501, "NotImplemented")
		expect(t, ask(refuses, "PUT", "/bucket/a", "1"), 200, "")
	}
}

// pages lists all names and common prefixes, page by page, and counts the pages.
func pages(t *testing.T, s *Server, query url.Values) (names []string, n int) {
	t.Helper()
	query.Set("list-type", "2")
	for {
		w := ask(s, "GET", "/bucket?"+query.Encode(), "")
		expect(t, w, 200, "")
		var res listResult
		if err := xml.Unmarshal(w.Body.Bytes(), &res); err != nil {
			t.Fatal(err)
		}
		n++
		if res.KeyCount != len(res.Contents)+len(res.CommonPrefixes) {
			t.Errorf("%d of %d and %d", res.KeyCount, len(res.Contents), len(res.CommonPrefixes))
		}
		for _, c := range res.Contents {
			name := c.Key
			if res.EncodingType == "url" {
				name, _ = url.QueryUnescape(name)
			}
			if c.Size != 1 || c.ETag == "" {
				t.Errorf("%+v", c)
			}
			if _, err := time.Parse(listTime, c.LastModified); err != nil {
				t.Error(err)
			}
			names = append(names, name)
		}
		for _, p := range res.CommonPrefixes {
			names = append(names, p.Prefix)
		}
		if !res.IsTruncated {
			return names, n
		}
		query.Set("continuation-token", res.NextContinuationToken)
	}
}

func TestLists(t *testing.T) {
	s := New(Options{PageKeys: 2}, "bucket")
	for _, name := range []string{"d/2", "a", "d/1", "d/3", "e+ f/x", "d", "da"} {
		expect(t, ask(s, "PUT", "/bucket/"+url.PathEscape(name), "1"), 200, "")
	}
	for _, c := range []struct {
		query string
		want  []string
		pages int
	}{
		{"", []string{"a", "d", "d/1", "d/2", "d/3", "da", "e+ f/x"}, 4},
		{"encoding-type=url", []string{"a", "d", "d/1", "d/2", "d/3", "da", "e+ f/x"}, 4},
		{"prefix=d/", []string{"d/1", "d/2", "d/3"}, 2},
		{"prefix=d/&start-after=d/1", []string{"d/2", "d/3"}, 1},
		{"prefix=d/&max-keys=1", []string{"d/1", "d/2", "d/3"}, 3},
		{"prefix=x", nil, 1},
		{"delimiter=/&start-after=d/1", []string{"da", "d/", "e+ f/"}, 2},
		{"delimiter=/", []string{"a", "d", "da", "d/", "e+ f/"}, 3},
		{"max-keys=0", nil, 1},
	} {
		query, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		got, n := pages(t, s, query)
		if !slices.Equal(got, c.want) || n != c.pages {
			t.Errorf("%s: %q in %d pages, want %q in %d", c.query, got, n, c.want, c.pages)
		}
	}
	for _, query := range []string{"list-type=2&max-keys=x", "list-type=2&continuation-token=%21"} {
		expect(t, ask(s, "GET", "/bucket?"+query, ""), 400, "InvalidArgument")
	}
	expect(t, ask(s, "GET", "/bucket", ""), 501, "NotImplemented")
	expect(t, ask(s, "GET", "/other?list-type=2", ""), 404, "NoSuchBucket")
}

func TestManyAreDeletedAtOnce(t *testing.T) {
	s := New(Options{PageKeys: 3}, "bucket")
	for i := range 5 {
		ask(s, "PUT", fmt.Sprintf("/bucket/%d", i), "1")
	}
	names := func(list ...string) string {
		return "<Delete><Object><Key>" + strings.Join(list, "</Key></Object><Object><Key>") + "</Key></Object></Delete>"
	}
	w := ask(s, "POST", "/bucket?delete=", names("1", "3", "none"))
	expect(t, w, 200, "")
	if strings.Count(w.Body.String(), "<Deleted>") != 3 {
		t.Error(w.Body)
	}
	if left, _ := pages(t, s, url.Values{}); !slices.Equal(left, []string{"0", "2", "4"}) {
		t.Errorf("%q are left", left)
	}
	expect(t, ask(s, "POST", "/bucket?delete", names("1", "2", "3", "4")), 400, "MalformedXML")
	expect(t, ask(s, "POST", "/bucket?delete", "<Delete></Delete>"), 400, "MalformedXML")
	expect(t, ask(s, "POST", "/bucket?delete", "{}"), 400, "MalformedXML")
	expect(t, ask(s, "POST", "/other?delete", names("1")), 404, "NoSuchBucket")
}

func TestBuckets(t *testing.T) {
	s := New(Options{Region: "here"})
	expect(t, ask(s, "PUT", "/b", ""), 400, "InvalidBucketName")
	expect(t, ask(s, "HEAD", "/bucket", ""), 404, "")
	expect(t, ask(s, "GET", "/bucket?location", ""), 404, "NoSuchBucket")
	expect(t, ask(s, "PUT", "/bucket/a", "1"), 404, "NoSuchBucket")
	expect(t, ask(s, "GET", "/bucket/a", ""), 404, "NoSuchBucket")
	expect(t, ask(s, "PUT", "/bucket/", ""), 200, "")
	expect(t, ask(s, "PUT", "/bucket", ""), 409, "BucketAlreadyOwnedByYou")
	expect(t, ask(s, "HEAD", "/bucket", ""), 200, "")
	if w := ask(s, "GET", "/bucket?location=", ""); !strings.Contains(w.Body.String(), ">here</LocationConstraint>") {
		t.Error(w.Body)
	}
	ask(s, "PUT", "/bucket/a", "1")
	expect(t, ask(s, "DELETE", "/bucket", ""), 409, "BucketNotEmpty")
	ask(s, "DELETE", "/bucket/a", "")
	expect(t, ask(s, "DELETE", "/bucket", ""), 204, "")
	for i := range maxBuckets {
		expect(t, ask(s, "PUT", fmt.Sprintf("/bucket%d", i), ""), 200, "")
	}
	expect(t, ask(s, "PUT", "/bucket", ""), 400, "TooManyBuckets")
}

func TestMemoryIsBounded(t *testing.T) {
	s := New(Options{MaxBytes: 2*overheadBytes + 12}, "bucket")
	expect(t, ask(s, "PUT", "/bucket/a", "12345"), 200, "")
	expect(t, ask(s, "PUT", "/bucket/b", "123456"), 507, "InsufficientStorage")
	expect(t, ask(s, "PUT", "/bucket/b", "12345"), 200, "")
	expect(t, ask(s, "DELETE", "/bucket/a", ""), 204, "")
	expect(t, ask(s, "PUT", "/bucket/c", "1"), 200, "")

	// What a client announces and does not send is given back.
	r := httptest.NewRequest("PUT", "/bucket/d", strings.NewReader("1"))
	r.ContentLength = 3
	before, w := s.Bytes(), httptest.NewRecorder()
	ask(s, "DELETE", "/bucket/c", "")
	s.ServeHTTP(w, r)
	expect(t, w, 400, "IncompleteBody")
	if s.Bytes() >= before {
		t.Errorf("%d bytes, before %d", s.Bytes(), before)
	}
}

func TestWhatTheServerDoesNotKnowIsRefused(t *testing.T) {
	s := New(Options{}, "bucket")
	expect(t, ask(s, "GET", "/", ""), 501, "NotImplemented")
	expect(t, ask(s, "POST", "/bucket/a?uploads", ""), 501, "NotImplemented")
	expect(t, ask(s, "POST", "/bucket/a", ""), 501, "NotImplemented")
	expect(t, ask(s, "GET", "/bucket?policy", ""), 501, "NotImplemented")
	expect(t, ask(s, "PUT", "/bucket/a", "", "X-Amz-Copy-Source", "/bucket/b"), 501, "NotImplemented")
	expect(t, ask(s, "PUT", "/bucket/a", "", "X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), 501, "NotImplemented")
	expect(t, ask(s, "PUT", "/bucket/a", "", "If-None-Match", `"x"`), 501, "NotImplemented")
	expect(t, ask(s, "PUT", "/bucket/"+strings.Repeat("a", 1025), ""), 400, "KeyTooLongError")
	r := httptest.NewRequest("PUT", "/bucket/a", strings.NewReader("1"))
	r.ContentLength = -1
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	expect(t, w, http.StatusLengthRequired, "MissingContentLength")
	sum := md5.Sum([]byte("1"))
	expect(t, ask(s, "PUT", "/bucket/a", "2", "Content-Md5", base64.StdEncoding.EncodeToString(sum[:])), 400, "BadDigest")
	expect(t, ask(s, "PUT", "/bucket/a", "1", "Content-Md5", base64.StdEncoding.EncodeToString(sum[:])), 200, "")
}

func FuzzSpan(f *testing.F) {
	f.Add("bytes=2-4", int64(10))
	f.Add("bytes=-3", int64(2))
	f.Add("bytes=8-", int64(0))
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		from, n, status, err := span(header, size)
		if err == nil && (from < 0 || n < 0 || n > size || from > size-n || status == http.StatusPartialContent && n == 0) {
			t.Errorf("%q of %d: %d from %d, %d", header, size, n, from, status)
		}
	})
}
