package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/minio/minio-go/v7"
)

// maxTextBytes bounds what is kept of a server's words.
const maxTextBytes = 300

// What ends an attempt that its caller has not ended.
var (
	errStalled = errors.New("no byte came or went in time")
	errSlow    = errors.New("not done in time")
	errRate    = errors.New("the rate has no room in time")
	errDone    = errors.New("the attempt has ended")
	errCaller  = errors.New("a bad argument")
)

// errDamaged is wrapped by what is found wrong with an answer here.
var errDamaged = errors.New("not what was asked for")

// classify makes an [*Error] of what an attempt failed with.
func (b *Bucket) classify(ctx context.Context, a *attempt, name string, err error) *Error {
	var ready *Error
	if errors.As(err, &ready) {
		return ready
	}
	e := &Error{Kind: a.kind, Name: name}
	var answer minio.ErrorResponse
	var missing *credentialsError
	ended := context.Cause(a.ctx)
	switch {
	case ctx.Err() != nil:
		e.Cause = ctx.Err()
	case errors.Is(ended, errStalled):
		e.Cause, e.Text = ErrUnavailable, fmt.Sprintf("no byte for %v", b.opts.Stall)
	case errors.Is(ended, errSlow):
		e.Cause, e.Text = ErrUnavailable, fmt.Sprintf("not done within %v", b.opts.Timeout)
	case errors.Is(ended, errRate):
		e.Cause, e.Text = context.DeadlineExceeded, errRate.Error()
	case errors.Is(err, errCaller):
		e.Cause, e.Text = ErrRefused, err.Error()
	case errors.As(err, &missing):
		e.Cause, e.Text = ErrCredentials, missing.Error()
	case errors.As(err, &answer):
		b.classifyAnswer(e, a, &answer)
	case errors.Is(err, errDamaged), errors.Is(err, io.ErrUnexpectedEOF) && a.delivers():
		e.Cause, e.Text = ErrDamaged, err.Error()
	default:
		e.Cause = ErrUnavailable
		e.under = a.failure() // the library changes some errors of connections
		if e.under == nil {
			e.under = err
		}
		var wrapped *url.Error
		if errors.As(e.under, &wrapped) {
			e.under = wrapped.Err
		}
		e.Text = e.under.Error()
	}
	e.Text = b.clean(e.Text)
	return e
}

// classifyAnswer says what the server's answer means. Codes come first, since servers differ in the
// status that they give with one; statuses are for codes that are not known.
func (b *Bucket) classifyAnswer(e *Error, a *attempt, answer *minio.ErrorResponse) {
	status, page := a.head()
	e.Status, e.Code, e.RequestID = answer.StatusCode, b.clean(answer.Code), b.clean(answer.RequestID)
	e.Text = answer.Message
	if e.Text == answer.Code {
		e.Text = ""
	}
	if page && status >= http.StatusBadRequest {
		// A proxy between, or no S3 server at all. A 404 of its is not a missing object.
		e.Cause, e.Code, e.Text = ErrUnavailable, "", "the answer is a page and not one of an S3 server"
		return
	}
	switch answer.Code {
	case "NoSuchBucket":
		e.Cause = ErrNoBucket
	case "NoSuchKey", "NoSuchVersion":
		e.Cause = ErrMissing
	case "PreconditionFailed", "ConditionalRequestConflict", "OperationAborted":
		e.Cause = ErrCondition
	case "InvalidObjectState":
		e.Cause = ErrArchived
	case "InvalidRange":
		e.Cause = ErrRange
	case "RequestTimeTooSkewed":
		e.Cause = ErrClock
		e.Text = fmt.Sprintf("the bucket's clock is %v ahead of this node's", b.clock.skew().Round(time.Second))
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch":
		e.Cause, e.renew = ErrCredentials, true
	case "AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "IllegalLocationConstraintException":
		// The region is wrong. If it was asked for, the library has taken the server's hint.
		e.Cause, e.renew = ErrCredentials, b.opts.Region == ""
	case "XAdminUserNotFound": // by versitygw, with status 404, of an access key that it does not know
		e.Cause = ErrCredentials
	case "AccessDenied", "AccountProblem", "AllAccessDisabled":
		e.Cause = ErrDenied
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests":
		e.Cause = ErrThrottled
	case "RequestTimeout", "IncompleteBody", "InternalError", "ServiceUnavailable", "BadDigest", "XAmzContentSHA256Mismatch":
		e.Cause = ErrUnavailable
	default:
		e.Cause = byStatus(answer.StatusCode, a.kind)
	}
	if e.Cause == ErrMissing && a.kind == Put {
		e.Cause = ErrCondition // If-Match of an object that is not there
	}
}

// byStatus is the meaning of an answer without a code that is known. A 404 is not a missing object then:
// its records would be dropped on all nodes. The library puts NoSuchKey into answers without a code.
func byStatus(status int, kind Kind) error {
	switch {
	case status == http.StatusPreconditionFailed, status == http.StatusConflict && kind == Put:
		return ErrCondition
	case status == http.StatusRequestedRangeNotSatisfiable:
		return ErrRange
	case status == http.StatusTooManyRequests:
		return ErrThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ErrDenied
	case status == http.StatusNotImplemented:
		return ErrRefused
	case status == 0, status == http.StatusNotFound, status == http.StatusRequestTimeout, status >= http.StatusInternalServerError:
		return ErrUnavailable // 0: the library could not read the answer
	}
	return ErrRefused
}

// clean makes one line of a text from outside, bounds it, and takes credentials out.
func (b *Bucket) clean(text string) string {
	text = b.credentials.redact(text)
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes], "") + "…"
	}
	return text
}
