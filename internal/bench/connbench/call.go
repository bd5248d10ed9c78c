package connbench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
)

// warmUp is how many calls go before those that are timed.
const warmUp = 1000

// Call is the calling process: it times calls as args (socket, calls, tokens) say, and
// writes a [Result] as JSON to out.
func Call(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("connbench: %d arguments, want socket, calls and tokens", len(args))
	}
	calls, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("connbench: calls: %w", err)
	}
	tokens, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("connbench: tokens: %w", err)
	}
	o := Options{Command: args[:1], Calls: calls, Tokens: tokens}
	if err := o.Validate(); err != nil {
		return err
	}
	s, err := client.NewScheduler(client.Options{Socket: args[0], Engine: "connbench", Manifest: manifest()})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Connect(ctx); err != nil {
		return err
	}
	r, err := timeCalls(ctx, s, &o)
	if err != nil {
		return err
	}
	if r.RawP50S, err = timeEcho(ctx, args[0]+echoSuffix, calls); err != nil {
		return err
	}
	r.Ratio = r.RTTP50S / r.RawP50S
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func timeCalls(ctx context.Context, s *client.Scheduler, o *Options) (Result, error) {
	m := connector.MatchRequest{Request: "connbench", Tokens: make([]uint32, o.Tokens)}
	took := make([]time.Duration, o.Calls)
	for i := -warmUp; i < o.Calls; i++ {
		start := time.Now()
		offer := s.Match(ctx, &m)
		if offer.Tokens != o.Tokens {
			return Result{}, fmt.Errorf("call %d was not answered", i+warmUp)
		}
		if i >= 0 {
			took[i] = time.Since(start)
		}
	}
	slices.Sort(took)
	return Result{
		Calls: o.Calls, Tokens: o.Tokens,
		RTTP50S: took[len(took)/2].Seconds(), RTTP99S: took[len(took)*99/100].Seconds(), RTTLowestS: took[0].Seconds(),
	}, nil
}

func manifest() connector.Manifest {
	return connector.Manifest{
		Engine: "connbench/1", Model: "none", KVDType: "bfloat16", BlockSize: 16,
		Groups:         []connector.Group{{Layers: 1, KVHeads: 1, HeadSize: 1, Layout: "none"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}
