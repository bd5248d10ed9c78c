package admin

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/store/archive"
)

// Store is the disk as archives are made of it, and put into it.
type Store interface {
	archive.Source
	archive.Destination
}

// FailedTrailer is the HTTP trailer that says how many records are not in an archive because they could not be read, or were damaged.
const FailedTrailer = "Kvconn-Failed-Records"

// stepTimeout bounds each read and each write of an archive: a client that does neither holds nothing.
const stepTimeout = 60 * time.Second

// ServeExport answers with an archive of a model's or of one namespace's records. An answer that is not complete breaks off.
func (s *Service) ServeExport(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if s.o.Sealed && q.Get("unsealed") != "true" {
		http.Error(w, "the store is sealed, and an archive is not: ask for unsealed=true if payloads may be in it in plain text", http.StatusForbidden)
		return
	}
	var list []*connector.Manifest
	if model := q.Get("model"); model != "" {
		list = prompt.Manifests(model, s.o.Disk.Namespaces())
	} else {
		for _, info := range s.o.Disk.Namespaces() {
			if m, err := connector.ParseManifest(info.Manifest); err == nil && info.Digest.String() == q.Get("namespace") {
				list = append(list, m)
			}
		}
	}
	if len(list) == 0 {
		http.Error(w, "no record is of that model or namespace", http.StatusNotFound)
		return
	}
	if !s.take(s.archiving) {
		http.Error(w, "another archive is being written or read", http.StatusConflict)
		return
	}
	defer func() { <-s.archiving }()
	w.Header().Set("Content-Type", "application/vnd.kvconn.archive")
	w.Header().Set("Trailer", FailedTrailer)
	done, err := archive.Export(r.Context(), s.o.Store, list, &patientWriter{w, http.NewResponseController(w)})
	if err != nil {
		s.o.Logger.Warn("an export broke off", "records", done.Records, "err", err, "remedy", "give the command again")
		panic(http.ErrAbortHandler) // the client is to notice
	}
	w.Header().Set(FailedTrailer, strconv.FormatInt(done.Failed, 10))
	s.o.Logger.Info("records were exported on request", "records", done.Records, "bytes", done.Bytes, "gone", done.Gone, "failed", done.Failed)
}

// ServeImport puts the records of an archive into the store.
func (s *Service) ServeImport(w http.ResponseWriter, r *http.Request) {
	if !s.take(s.archiving) {
		http.Error(w, "another archive is being written or read", http.StatusConflict)
		return
	}
	defer func() { <-s.archiving }()
	control := http.NewResponseController(w)
	done, err := archive.Import(r.Context(), s.o.Store, &patientReader{r.Body, control})
	if err == nil {
		err = s.o.Sync(r.Context())
	}
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err != nil {
		s.o.Logger.Warn("an import broke off", "records", done.Records, "err", err, "remedy", "give the command again: records that are there cost nothing")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.o.Logger.Info("records were imported on request", "records", done.Records, "bytes", done.Bytes, "damaged", done.Damaged, "unknown", done.Unknown,
		"refused", done.Refused, "complete", done.Complete)
	httpserve.WriteJSON(w, http.StatusOK, done, "  ")
}

// take takes the one turn if it is free.
func (s *Service) take(turn chan struct{}) bool {
	select {
	case turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// patientWriter and patientReader bound each step, not the whole.
type patientWriter struct {
	w       io.Writer
	control *http.ResponseController
}

func (p *patientWriter) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(stepTimeout)) // a recorder of tests has none
	return p.w.Write(b)
}

type patientReader struct {
	r       io.Reader
	control *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(stepTimeout))
	n, err := p.r.Read(b)
	if err != nil { // its end would end the request, which may take longer
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
