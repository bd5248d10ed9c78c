package enginebench

import (
	"context"
	"fmt"
	"time"
)

// retryPause is how long an endpoint that is not back is left alone.
const retryPause = 500 * time.Millisecond

// between asks what counts for nothing, rests, and has done what is to be done before prompts are asked again.
func (b *bench) between(ctx context.Context) error {
	for n := range b.fills() {
		for _, t := range b.targets {
			if _, err := t.ask(ctx, prompt(b.o.Seed, t.stream, kindFill, n, t.words(b.fillTokens()))); err != nil {
				return err
			}
		}
		b.o.Progress("other prompts", n+1, b.fills())
	}
	if err := rest(ctx, b.o.Pause); err != nil || b.o.Between == nil {
		return err
	}
	b.o.Progress("what is between", 0, 0)
	if err := b.o.Between(ctx); err != nil {
		return fmt.Errorf("what is between the passes: %w", err)
	}
	for _, t := range b.targets {
		if err := b.back(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// back waits until an endpoint answers again, and warms it up as [bench.open] does.
func (b *bench) back(ctx context.Context, t *target) error {
	b.o.Progress("waiting for "+t.base, 0, 0)
	deadline := time.Now().Add(b.o.Timeout)
	for n := 0; n < probes; {
		_, err := t.ask(ctx, prompt(b.o.Seed, t.stream, kindWarm, n, probeWords))
		switch {
		case err == nil:
			n++
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("the endpoint is not back after %s: %w", b.o.Timeout, err)
		}
		if err := rest(ctx, min(retryPause, b.o.Timeout/10)); err != nil {
			return err
		}
	}
	return nil
}

// rest waits.
func rest(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}
