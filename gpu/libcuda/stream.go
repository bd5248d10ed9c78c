package libcuda

import (
	"fmt"
	"unsafe"
)

// Flags of streams and events.
const (
	streamNonBlocking  = 1 // not ordered with the legacy default stream
	eventBlockingSync  = 1
	eventDisableTiming = 2
)

// Stream is a queue of work on a device. Work of one stream runs in order, but for the copies within a batch.
type Stream struct {
	ctx    *Context
	handle uintptr
}

// NewStream makes a stream; a lower number is a higher priority.
func (c *Context) NewStream(priority int) (*Stream, error) {
	s := &Stream{ctx: c}
	if err := c.call(cuStreamCreateWithPriority, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking, uintptr(int32(priority))); err != nil {
		return nil, fmt.Errorf("new stream: %w", err)
	}
	return s, nil
}

// Destroy gives the stream back once its work is done; it does not wait.
func (s *Stream) Destroy() error { return s.ctx.call(cuStreamDestroy, s.handle) }

// Done reports whether everything queued has been executed. An error is that of some work queued earlier.
func (s *Stream) Done() (bool, error) { return s.ctx.ready(cuStreamQuery, s.handle) }

// Synchronize waits until everything queued has been executed. It cannot be called back.
func (s *Stream) Synchronize() error { return s.ctx.call(cuStreamSynchronize, s.handle) }

// WaitEvent makes later work of the stream wait for the event.
func (s *Stream) WaitEvent(e *Event) error {
	return s.ctx.call(cuStreamWaitEvent, s.handle, e.handle, 0)
}

// WriteValue64 writes v at p once everything queued before has been executed. p may be registered host memory
// (Context.HostDevicePtr). The write comes after all writes of that earlier work.
func (s *Stream) WriteValue64(p DevicePtr, v uint64) error {
	return s.ctx.call(cuStreamWriteValue64, s.handle, uintptr(p), uintptr(v), 0)
}

// Event marks a point in a stream.
type Event struct {
	ctx    *Context
	handle uintptr
}

// NewEvent makes an event. Only one that is timed can be used by Since; others cost less.
func (c *Context) NewEvent(timed bool) (*Event, error) {
	flags := uintptr(eventBlockingSync | eventDisableTiming)
	if timed {
		flags = eventBlockingSync
	}
	e := &Event{ctx: c}
	if err := c.call(cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), flags); err != nil {
		return nil, fmt.Errorf("new event: %w", err)
	}
	return e, nil
}

// Record puts the event after all work that is queued in s.
func (e *Event) Record(s *Stream) error { return e.ctx.call(cuEventRecord, e.handle, s.handle) }

// Done reports whether the work before the event has been executed.
func (e *Event) Done() (bool, error) { return e.ctx.ready(cuEventQuery, e.handle) }

// Synchronize waits for the event, without using the processor. It cannot be called back.
func (e *Event) Synchronize() error { return e.ctx.call(cuEventSynchronize, e.handle) }

// Since is the time from start to e on the device, in milliseconds. Both must be timed and done.
func (e *Event) Since(start *Event) (milliseconds float32, err error) {
	err = e.ctx.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&milliseconds)), start.handle, e.handle)
	return milliseconds, err
}

// Destroy gives the event back.
func (e *Event) Destroy() error { return e.ctx.call(cuEventDestroy, e.handle) }
