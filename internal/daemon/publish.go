package daemon

import (
	"context"

	"github.com/kvconn/kvconn/store/residency/publish"
)

// openPublisher opens the endpoints of published events, if there are to be any.
func (d *daemon) openPublisher(ctx context.Context) error {
	if d.opts.Publish == nil {
		return nil
	}
	o := *d.opts.Publish
	o.Logger = d.opts.Logger
	p, err := publish.New(ctx, o, d.store)
	if err != nil {
		return err
	}
	d.publisher = p
	s := p.Stats()
	d.info.Events, d.info.EventsReplay = s.Endpoint, s.ReplayEndpoint
	return nil
}

// publishStatus is nil if no events are published.
func (d *daemon) publishStatus() *publish.Stats {
	if d.publisher == nil {
		return nil
	}
	s := d.publisher.Stats()
	return &s
}
