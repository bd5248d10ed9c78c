package bucket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// Causes of errors: what callers decide by. Each error of a [Client] is an [*Error] that wraps one of
// them, or the error of the caller's context.
var (
	// ErrMissing: there is no object of that name.
	ErrMissing = errors.New("no such object")
	// ErrRange: the range begins past the end of the object.
	ErrRange = errors.New("the object is shorter")
	// ErrDamaged: the answer is not what was asked for. Its body ended early, or is another range.
	ErrDamaged = errors.New("the answer is damaged")
	// ErrCondition: the condition of a Put does not hold, or another Put of the name is under way.
	ErrCondition = errors.New("the condition does not hold")
	// ErrNoBucket: there is no such bucket.
	ErrNoBucket = errors.New("no such bucket")
	// ErrDenied: the server refuses who asks.
	ErrDenied = errors.New("denied")
	// ErrCredentials: the server does not take the credentials, for whatever they ask. They were fetched again
	// before it is reported. It wraps [ErrDenied].
	ErrCredentials = fmt.Errorf("%w: the credentials or their region", ErrDenied)
	// ErrArchived: the object is in an archive class, and cannot be read before somebody restores it.
	ErrArchived = errors.New("archived")
	// ErrClock: the clocks of node and server differ too much for a signature.
	ErrClock = errors.New("the clocks differ")
	// ErrThrottled: the server wants fewer requests.
	ErrThrottled = errors.New("throttled")
	// ErrUnavailable: no answer, a connection that broke, or a failure of the server.
	ErrUnavailable = errors.New("unavailable")
	// ErrRefused: the server does not take such a request, whoever asks.
	ErrRefused = errors.New("refused")
	// ErrOpen: the breaker is open, and nothing was sent.
	ErrOpen = errors.New("the bucket did not work lately; nothing was sent")
)

// causeName is the name of a cause in counters.
func causeName(cause error) string {
	switch cause {
	case ErrMissing:
		return "missing"
	case ErrRange:
		return "range"
	case ErrDamaged:
		return "damaged"
	case ErrCondition:
		return "condition"
	case ErrNoBucket:
		return "no_bucket"
	case ErrDenied:
		return "denied"
	case ErrCredentials:
		return "credentials"
	case ErrArchived:
		return "archived"
	case ErrClock:
		return "clock"
	case ErrThrottled:
		return "throttled"
	case ErrRefused:
		return "refused"
	case ErrOpen:
		return "open"
	case context.DeadlineExceeded:
		return "deadline"
	case context.Canceled:
		return "canceled"
	}
	return "unavailable"
}

// Error says what failed, for which request, and why. It has no credentials in it.
type Error struct {
	// Kind is the request's, Name the object's, the prefix that was listed, or empty.
	Kind Kind
	Name string
	// Cause is one of the causes above, or the error of the context.
	Cause error
	// Status, Code and RequestID are the server's, if it answered.
	Status          int
	Code, RequestID string
	// Text is what the server, or the system, says.
	Text string
	// Attempts is how often the request was sent.
	Attempts int

	under error // the error of a connection, or of a context that ended between attempts
	// renew says that credentials or region may be old.
	renew bool
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	if e.Name != "" {
		b.WriteString(" " + e.Name)
	}
	fmt.Fprintf(&b, ": %v", e.Cause)
	if e.Status != 0 || e.Code != "" {
		b.WriteString(": ")
		if e.Status != 0 {
			fmt.Fprintf(&b, "%d ", e.Status)
		}
		b.WriteString(e.Code)
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.RequestID != "" {
		b.WriteString(" (request " + e.RequestID + ")")
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, ", %d attempts", e.Attempts)
	}
	return b.String()
}

// Unwrap returns the cause, and the error under it if there is one.
func (e *Error) Unwrap() []error {
	if e.under == nil {
		return []error{e.Cause}
	}
	return []error{e.Cause, e.under}
}

// Remedy is what an operator can do about an error of a bucket, in one line for a log. It is empty
// where there is nothing to do but wait.
func Remedy(err error) string {
	var unknown x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unknown):
		return "give the root certificate of the server's authority as object_ca"
	case errors.As(err, &certificate):
		return "use the name in object_endpoint that the server's certificate has, or mend the certificate"
	case errors.Is(err, ErrNoBucket):
		return "make the bucket, or mend its name in object and the region in object_region"
	case errors.Is(err, ErrCredentials):
		return "check the credentials (AWS_* variables, shared files, role) and object_region: other rights do not help"
	case errors.Is(err, ErrDenied):
		return "check the credentials (AWS_* variables, shared files, role), object_region, and that they allow " +
			"s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
	case errors.Is(err, ErrArchived):
		return "leave this prefix out of the life-cycle rules that move objects to an archive class, and restore or delete what is there"
	case errors.Is(err, ErrClock):
		return "set the clock of this node, by NTP for example"
	case errors.Is(err, ErrThrottled):
		return "wait; if it goes on, lower object_uploads or set object_upload_bytes_per_s"
	case errors.Is(err, ErrRefused):
		return "check that object_endpoint is an S3 server, and object_style"
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrOpen):
		return "check that object_endpoint can be reached from this node, and its server"
	}
	return ""
}
