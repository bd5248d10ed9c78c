package spans

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvconn/kvconn/connector"
)

// Match calls match, which answers m, in a span. Only a request's first match has one: engines repeat the question in every
// step in which there is no room for the request. A request without a trace may begin one; m.Trace names it then, so that the
// request's loads and saves join it. It keeps nothing of m. Where requests begin no traces it
// allocates nothing without a span.
func (e *Engine) Match(
	ctx context.Context, m *connector.MatchRequest, match func(context.Context, *connector.MatchRequest) (connector.Offer, error),
) (connector.Offer, error) {
	span := e.first(m)
	if span == nil {
		return match(ctx, m)
	}
	defer span.End()
	asked := m.Tiers
	m.Tiers = true
	offer, err := match(ctx, m)
	m.Tiers = asked
	known := m.From + len(m.Tokens)
	span.SetAttributes(
		request(m.Request), attribute.Int("kvconn.prompt_tokens", known), attribute.Int("kvconn.computed_tokens", min(m.Computed, known)),
		attribute.Int("kvconn.queried_tokens", max(0, known-m.Computed)), attribute.Int("kvconn.offered_tokens", offer.Tokens),
	)
	if err != nil {
		failed(span, "match", err.Error())
		return offer, err
	}
	if offer.Refused > 0 {
		span.SetAttributes(attribute.Int("kvconn.refused_tokens", offer.Refused))
	}
	if offer.Tokens == 0 && offer.Why != "" {
		span.SetAttributes(attribute.String("kvconn.no_offer_reason", string(offer.Why)))
	}
	for i := range offer.Tiers {
		if t := &offer.Tiers[i]; t.Tokens > 0 {
			span.SetAttributes(attribute.Int("kvconn.offered_tokens."+t.Tier, t.Tokens))
		}
	}
	if !asked {
		offer.Tiers = [connector.MaxTiers]connector.TierTokens{}
	}
	return offer, nil
}

// first begins the span of a request's first match, nil if there is to be none.
func (e *Engine) first(m *connector.MatchRequest) trace.Span {
	if e == nil || m.From > 0 || e.t.unrecorded(m.Trace) {
		return nil
	}
	span, root := e.t.begin("kvconn.match", m.Trace, trace.WithSpanKind(trace.SpanKindServer), e.attrs)
	if root {
		m.Trace = traceparent(span.SpanContext())
	}
	return span
}

// failed marks a span as that of something that went wrong. kind is one of a few.
func failed(span trace.Span, kind, description string) {
	span.SetAttributes(attribute.String("error.type", kind))
	span.SetStatus(codes.Error, description)
}
