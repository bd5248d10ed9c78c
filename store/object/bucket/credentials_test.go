package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// noCredentials clears what this process may have.
func noCredentials(t *testing.T) (home string) {
	t.Helper()
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	home = t.TempDir()
	t.Setenv("HOME", home)
	return home
}

func shared(t *testing.T, home, file, text string) {
	t.Helper()
	dir := filepath.Join(home, ".aws")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsAreWhereToolsHaveThem(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"AccessKeyId":"role","SecretAccessKey":"s","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer server.Close()
	home := noCredentials(t)
	who := func() string {
		value, err := newChain("").fetch(t.Context())
		if err != nil {
			return err.Error()
		}
		return value.AccessKeyID
	}
	if got := who(); got != "no credentials: variables: none; shared files: none" {
		t.Error(got)
	}
	shared(t, home, "credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = s\n[other]\naws_access_key_id = other\naws_secret_access_key = s\n")
	if got := who(); got != "file" {
		t.Error(got)
	}
	t.Setenv("AWS_PROFILE", "other")
	if got := who(); got != "other" {
		t.Error(got)
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.URL)
	if got := who(); got != "role" {
		t.Error(got)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "variable")
	if got := who(); got != "role" {
		t.Errorf("%s: half a pair of keys is none", got)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
	if got := who(); got != "variable" {
		t.Error(got)
	}
}

// What is wrong with credentials is said without them.
func TestNoSecretInErrorsOfTheChain(t *testing.T) {
	home := noCredentials(t)
	for _, c := range []struct{ file, text, profile, want string }{
		{"credentials", "[default]\n" + testSession + "\n", "", "shared files: not usable"},
		{"credentials", "[default]\naws_secret_access_key = " + testSecret + "\n", "", "shared files: profile has partial static credentials"},
		{"credentials", "[default]\naws_access_key_id = a\naws_secret_access_key = " + testSecret + "\n", "none", "shared files: they have no such profile"},
		{"config", "[profile run]\ncredential_process = sh -c false\n", "run", "shared files: credential_process: exit status 1"},
	} {
		if err := os.RemoveAll(filepath.Join(home, ".aws")); err != nil {
			t.Fatal(err)
		}
		shared(t, home, c.file, c.text)
		t.Setenv("AWS_PROFILE", c.profile)
		_, err := newChain("").fetch(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
			continue
		}
		noSecret(t, err.Error())
	}
	t.Setenv("AWS_PROFILE", "")
	refused := httptest.NewServer(http.NotFoundHandler())
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", refused.URL)
	if _, err := newChain("").fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "role of the variables: 404 Not Found") {
		t.Error(err)
	}
	refused.Close()
	if _, err := newChain("").fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

func TestARequestWithoutCredentialsIsDenied(t *testing.T) {
	noCredentials(t)
	b := open(t, s3mem.Options{}, func(o *Options) { o.Keys = nil })
	_, _, err := b.read(t.Context(), "a", 0, 0)
	want(t, err, ErrDenied)
	if b.server.Counts().Requests() != 0 || !strings.Contains(err.Error(), "shared files: none") || !strings.Contains(Remedy(err), "credentials") {
		t.Error(err)
	}
}

func value(id string, life time.Duration) credentials.Value {
	v := credentials.Value{AccessKeyID: id, SecretAccessKey: testSecret, SignerType: credentials.SignatureV4}
	if life != 0 {
		v.Expiration = time.Now().Add(life)
	}
	return v
}

// signedBy is the access key that a request is signed with.
func signedBy(r *http.Request) string {
	_, id, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	id, _, _ = strings.Cut(id, "/")
	return id
}

// Refused credentials are fetched again, once for a request, and others are used from then on.
func TestRefusedCredentialsAreFetchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fetches atomic.Int64
		b := open(t, s3mem.Options{}, nil)
		server := b.transport
		b.credentials.fetch = func(context.Context) (credentials.Value, error) {
			return value(fmt.Sprintf("key%d", fetches.Add(1)), 0), nil
		}
		good := "key2"
		b.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if signedBy(r) != good {
				return s3proxy.Direct(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusForbidden)
					_, _ = fmt.Fprintf(w, "<Error><Code>ExpiredToken</Code><Message>%s and %s are old</Message></Error>", testSecret, signedBy(r))
				})).RoundTrip(r)
			}
			return server.RoundTrip(r)
		})
		b.mustWrite(t, "a", "1")
		b.mustWrite(t, "b", "1")
		if fetches.Load() != 2 || b.Stats().Errors["credentials"] != 1 {
			t.Errorf("%d fetches, %+v", fetches.Load(), b.Stats())
		}
		good = "nobody"
		_, _, err := b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrDenied)
		if fetches.Load() != 3 || !strings.Contains(err.Error(), "(hidden) and (hidden) are old") {
			t.Errorf("%d fetches, %v", fetches.Load(), err)
		}
	})
}

// Credentials that expire are fetched before they do, and requests don't wait for it.
func TestExpiringCredentialsAreRenewedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fetches atomic.Int64
		b := open(t, s3mem.Options{}, nil)
		b.credentials.fetch = func(context.Context) (credentials.Value, error) {
			if n := fetches.Add(1); n > 1 {
				time.Sleep(5 * time.Second)
				if n == 2 {
					return credentials.Value{}, errors.New("not now")
				}
			}
			return value("key", time.Hour), nil
		}
		for range 70 {
			began := time.Now()
			b.mustWrite(t, "a", "1")
			if took := time.Since(began); took != 0 {
				t.Errorf("a request waited for %v", took)
			}
			time.Sleep(time.Minute)
		}
		if n := fetches.Load(); n != 3 { // at 0, 48 and, after a failure, 49 minutes
			t.Errorf("%d fetches", n)
		}
	})
}

// A service that does not answer holds up nobody longer than the time for it, and is asked once.
func TestCredentialsThatDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fetches atomic.Int64
		b := open(t, s3mem.Options{}, nil)
		release := make(chan struct{})
		b.credentials.fetch = func(context.Context) (credentials.Value, error) {
			fetches.Add(1)
			<-release
			return value("key", 0), nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, context.DeadlineExceeded)
		_, _, err = b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrDenied)
		if took := time.Since(began); took != time.Second+defaultCredentialsTimeout || fetches.Load() != 1 {
			t.Errorf("after %v, %d fetches", took, fetches.Load())
		}
		close(release)
		synctest.Wait()
		_, _, err = b.read(t.Context(), "a", 0, 0)
		want(t, err, ErrMissing)
	})
}

func TestKeysPrintAsNothing(t *testing.T) {
	keys := Keys{testID, testSecret, testSession}
	var log testlog.Text
	slog.New(slog.NewJSONHandler(&log, nil)).Info("keys", "keys", keys, "pointer", &keys, "options", Options{Keys: &keys})
	encoded, err := json.Marshal(Options{Keys: &keys}.Keys)
	if err != nil {
		t.Fatal(err)
	}
	noSecret(t, fmt.Sprintf("%v %+v %#v %s %q %x %v", keys, keys, keys, keys, keys, keys, &keys)+string(encoded)+log.String())
}
