package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
)

// checkOf is a check that says of rank 0 that it is not well.
func checkOf(o *Options) {
	o.Check = func(_ context.Context, rank int32) error {
		if rank == 0 {
			return errors.New("503")
		}
		return nil
	}
}

func TestARequestWhoseEngineDiedIsTriedElsewhere(t *testing.T) {
	f := newFront(t, 2, checkOf)
	f.engines[0].Set(enginetest.Fail)
	resp, body := f.post(t, plain, PinHeader, "0")
	if resp.StatusCode != http.StatusOK || resp.Header.Get(PinHeader) != "1" || !strings.Contains(body, "hello") {
		t.Errorf("%s from %s: %s", resp.Status, resp.Header.Get(PinHeader), body)
	}
	if s := f.proxy.Stats(); s.Retries != 1 || len(f.failed) != 1 || f.failed[0] != 0 {
		t.Errorf("%+v, failed %v", s, f.failed)
	}
	f.idle(t)
}

func TestAStreamWhoseEngineDiedBeforeItsFirstTokenIsTriedElsewhere(t *testing.T) {
	f := newFront(t, 2, checkOf)
	f.engines[0].Set(enginetest.FailInStream)
	stream := strings.Replace(plain, "{", `{"stream":true,`, 1)
	resp, body := f.post(t, stream, PinHeader, "0")
	if resp.StatusCode != http.StatusOK || resp.Header.Get(PinHeader) != "1" || strings.Contains(body, "error") {
		t.Errorf("%s from %s: %s", resp.Status, resp.Header.Get(PinHeader), body)
	}
	f.idle(t)
}

func TestAnErrorOfARankThatIsWellIsTheAnswer(t *testing.T) {
	f := newFront(t, 2, checkOf)
	f.engines[1].Set(enginetest.Fail)
	resp, body := f.post(t, plain, PinHeader, "1")
	if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "internal") || f.proxy.Stats().Retries != 0 {
		t.Errorf("%s: %s, %+v", resp.Status, body, f.proxy.Stats())
	}
	f.idle(t)
}
