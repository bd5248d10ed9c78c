package copier

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// descriptorsInMessage is the kernel's limit (SCM_MAX_FD).
	descriptorsInMessage = 253
	// exportTimeout bounds the waits for an engine's descriptors, all of one registration together: while they last the
	// copier answers nobody else, and the daemon kills a copier that does not answer.
	exportTimeout = 5 * time.Second
)

// exportStream is the socket by which an engine sends descriptors of VMM memory: messages of at least one byte, each
// with up to 253 descriptors, numbered through from 0. A registration has room for 17 descriptors, and expandable
// segments have thousands.
type exportStream struct {
	conn *net.UnixConn
	next int
	// waiting are those received and not taken yet: the next one's number is next.
	waiting []*os.File
	oob     []byte
	// left is how long the engine may still be waited for.
	left time.Duration
}

// newExportStream takes the socket over.
func newExportStream(f *os.File) (*exportStream, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: socket of exports: %w", errMemory, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("%w: the socket of exports is no Unix socket", errMemory)
	}
	return &exportStream{conn: u, left: exportTimeout, oob: make([]byte, unix.CmsgSpace(descriptorsInMessage*4))}, nil
}

// take returns the descriptor of a number. They are taken in order, each once: otherwise an engine could make the
// copier hold thousands of them open.
func (s *exportStream) take(number int) (*os.File, error) {
	if number != s.next {
		return nil, fmt.Errorf("%w: export %d is named where %d is the next", errMemory, number, s.next)
	}
	if len(s.waiting) == 0 {
		if err := s.receive(); err != nil {
			return nil, fmt.Errorf("export %d: %w", number, err)
		}
	}
	f := s.waiting[0]
	s.waiting = s.waiting[1:]
	s.next++
	return f, nil
}

func (s *exportStream) receive() error {
	began := time.Now()
	if err := s.conn.SetReadDeadline(began.Add(s.left)); err != nil {
		return err
	}
	var text [64]byte
	n, oobn, flags, _, err := s.conn.ReadMsgUnix(text[:], s.oob)
	s.left -= time.Since(began)
	if err != nil {
		return fmt.Errorf("%w: %w", errMemory, err)
	}
	files, err := rights(s.oob[:oobn])
	switch {
	case err != nil:
	case n == 0 && len(files) == 0:
		err = errors.New("the engine has closed the socket")
	case flags&unix.MSG_CTRUNC != 0:
		err = errors.New("the message was cut: too many descriptors are open")
	case len(files) == 0:
		err = errors.New("a message without descriptors")
	}
	if err != nil {
		CloseAll(files)
		return fmt.Errorf("%w: %w", errMemory, err)
	}
	s.waiting = files
	return nil
}

func (s *exportStream) close() error {
	CloseAll(s.waiting)
	s.waiting = nil
	return s.conn.Close()
}
