package s3mem

import (
	"encoding/xml"
	"net/http"
	"strconv"
)

// apiError is an answer that says why something was not done.
type apiError struct {
	status        int
	code, message string
	key           string
	// size is that of the object whose range was asked for, if that is what is wrong.
	size int64
}

type errorBody struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Key       string `xml:",omitempty"`
	Resource  string
	RequestID string `xml:"RequestId"`
}

// write answers with the error. As on AWS the answer to a HEAD has no body.
func (e *apiError) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if e.status == http.StatusRequestedRangeNotSatisfiable {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(e.size, 10))
	}
	body, err := xml.Marshal(errorBody{
		Code: e.code, Message: e.message, Key: e.key, Resource: r.URL.Path, RequestID: h.Get("X-Amz-Request-Id"),
	})
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	h.Set("Content-Type", "application/xml")
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(append([]byte(xml.Header), body...)) // the client has gone
	}
}

// writeXML answers with v.
func writeXML(w http.ResponseWriter, v any) {
	body, err := xml.Marshal(v)
	if err != nil {
		panic(err) // structs of strings and numbers can always be marshalled
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(xml.Header)+len(body)))
	_, _ = w.Write(append([]byte(xml.Header), body...)) // the client has gone
}

type location struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ LocationConstraint"`
	Region  string   `xml:",chardata"`
}

func fail(status int, code, message string) *apiError {
	return &apiError{status: status, code: code, message: message}
}

func errNotImplemented(what string) *apiError {
	return fail(http.StatusNotImplemented, "NotImplemented", "s3mem does not have this: "+what)
}

func errNoSuchBucket() *apiError {
	return fail(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
}

func errNoSuchKey(key string) *apiError {
	return &apiError{status: http.StatusNotFound, code: "NoSuchKey", message: "The specified key does not exist.", key: key}
}

func errBucketExists() *apiError {
	return fail(http.StatusConflict, "BucketAlreadyOwnedByYou", "The bucket is there already, and yours")
}

func errBucketName() *apiError {
	return fail(http.StatusBadRequest, "InvalidBucketName", "A bucket's name has 3 to 63 characters")
}

func errTooManyBuckets() *apiError {
	return fail(http.StatusBadRequest, "TooManyBuckets", "The server has as many buckets as it may")
}

func errBucketNotEmpty() *apiError {
	return fail(http.StatusConflict, "BucketNotEmpty", "The bucket you tried to delete is not empty")
}

func errPrecondition(header string) *apiError {
	return fail(http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold: "+header)
}

func errRange(size int64) *apiError {
	return &apiError{status: http.StatusRequestedRangeNotSatisfiable, code: "InvalidRange", message: "The requested range is not satisfiable", size: size}
}

func errKeyTooLong() *apiError {
	return fail(http.StatusBadRequest, "KeyTooLongError", "Your key is too long")
}

func errNoLength() *apiError {
	return fail(http.StatusLengthRequired, "MissingContentLength", "You must provide the Content-Length HTTP header.")
}

func errIncomplete() *apiError {
	return fail(http.StatusBadRequest, "IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header")
}

func errDigest() *apiError {
	return fail(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
}

func errFull(most int64) *apiError {
	return fail(http.StatusInsufficientStorage, "InsufficientStorage", "s3mem keeps at most "+strconv.FormatInt(most, 10)+" bytes")
}

func errArgument(message string) *apiError {
	return fail(http.StatusBadRequest, "InvalidArgument", message)
}

func errXML(most int) *apiError {
	return fail(http.StatusBadRequest, "MalformedXML", "The body has to be a list of 1 to "+strconv.Itoa(most)+" names in XML")
}
