package worker

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
)

func openDescriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// busyDriver is one whose device is being started again.
type busyDriver struct{ gpu.HostDriver }

func (*busyDriver) Open([]*os.File) (gpu.Memory, error) {
	return nil, fmt.Errorf("%w: its copier starts", gpu.ErrAgain)
}

// The client must not take a device that will serve soon for one that never will.
func TestARegistrationThatComesTooEarlyIsToBeRepeated(t *testing.T) {
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Driver = new(busyDriver) })
	_, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	l := testLayout()
	_, err = w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), f)
	if !errors.Is(err, connector.ErrAgain) || errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("%v", err)
	}
}

// holdingDriver is one that wants the engine's connection.
type holdingDriver struct{ gpu.HostDriver }

func (d *holdingDriver) OpenHolding(files []*os.File, _ *os.File) (gpu.Memory, error) {
	return d.Open(files)
}

// That no descriptor is free now is no reason to give a rank up.
func TestARegistrationWithoutADescriptorIsToBeRepeated(t *testing.T) {
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) {
		o.Driver, o.Connection = new(holdingDriver), func() (*os.File, error) { return nil, syscall.EMFILE }
	})
	_, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	l := testLayout()
	if _, err = w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), f); !errors.Is(err, connector.ErrAgain) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%v", err)
	}
}

// A client may try again and again.
func TestRefusedRegistrationsLeaveNothingBehind(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	const tooLarge = 32 << 20 // the host tier has half of that
	m := newEngineMemory(t)
	if err := m.f.Truncate(tooLarge); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	large := testLayout()
	large.Groups[0] = connector.GroupLayout{Blocks: 1, Runs: []connector.Run{{Layers: 1, Bytes: tooLarge}}}
	before := openDescriptors(t)
	for name, try := range map[string]struct {
		layout  connector.Layout
		regions []*os.File
		page    bool
		want    error
	}{
		"block larger than the host tier": {large, m.descriptor(), true, host.ErrTooLarge},
		"no fence page":                   {testLayout(), m.descriptor(), false, fence.ErrPage},
		"region that is no memory":        {testLayout(), append(m.descriptor(), (&engineMemory{t, null}).descriptor()...), true, connector.ErrBadRequest},
		"layout without groups":           {connector.Layout{}, m.descriptor(), true, connector.ErrLayout},
	} {
		page, f, err := fence.New()
		if err != nil {
			t.Fatal(err)
		}
		if !try.page {
			_ = f.Close()
			f = m.descriptor()[0]
		}
		if _, err := w.Register(t.Context(), &try.layout, try.regions, f); !errors.Is(err, try.want) || !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want %v", name, err, try.want)
		}
		if err := page.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: the fence page's descriptor is left open", name)
		}
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	notMapped(t)
	if n := pinned(w); n != 0 {
		t.Errorf("%d bytes are pinned", n)
	}
}
