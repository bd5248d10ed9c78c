package spans

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// maxAnswerBytes bounds what is read of a collector's answer.
const maxAnswerBytes = 64 << 10

// exporter posts batches to a collector.
type exporter struct {
	client     *http.Client
	url, agent string
	headers    map[string]string
}

// post sends a batch once. An [errUnavailable] says that it may be sent again.
func (e *exporter) post(ctx context.Context, batch []sdktrace.ReadOnlySpan) (refused int, err error) {
	body, err := proto.Marshal(encode(batch))
	if err != nil {
		return 0, fmt.Errorf("encode spans: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	for k, v := range e.headers {
		req.Header.Set(k, v)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", e.agent)
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, &errUnavailable{error: err}
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		// Also where the answer breaks off: another post would send the spans twice.
		return partial(answer, len(batch))
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return 0, &errUnavailable{fmt.Errorf("the collector answers %s", resp.Status), time.Duration(min(max(seconds, 0), 3600)) * time.Second}
	}
	return 0, errors.Join(fmt.Errorf("the collector answers %s", resp.Status), err)
}

// partial reads an ExportTraceServiceResponse: how many spans of a batch were refused, and why. The message's own package would
// bring gRPC. What is malformed refuses nothing.
func partial(answer []byte, batch int) (refused int, err error) {
	var why string
	each(answer, func(field protowire.Number, _ uint64, success []byte) {
		if field != 1 { // partial_success
			return
		}
		each(success, func(field protowire.Number, n uint64, text []byte) {
			switch field {
			case 1: // rejected_spans
				refused = int(min(n, uint64(batch)))
			case 2: // error_message
				why = clean(string(text[:min(len(text), 256)]))
			}
		})
	})
	if refused > 0 {
		return refused, fmt.Errorf("the collector refused %d of %d spans: %s", refused, batch, why)
	}
	return 0, nil
}

// each calls f for each field of a message that is a number or bytes, up to what is malformed.
func each(b []byte, f func(field protowire.Number, n uint64, bytes []byte)) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		var number uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			return
		}
		b = b[n:]
		f(field, number, text)
	}
}

// encode makes the message of a batch. It has the form of an ExportTraceServiceRequest. All spans are of one resource and scope.
func encode(batch []sdktrace.ReadOnlySpan) *tracepb.TracesData {
	scope := batch[0].InstrumentationScope()
	out := &tracepb.ScopeSpans{Scope: &commonpb.InstrumentationScope{Name: scope.Name, Version: scope.Version}, Spans: make([]*tracepb.Span, len(batch))}
	for i, s := range batch {
		out.Spans[i] = span(s)
	}
	r := batch[0].Resource()
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: attributes(r.Attributes())}, ScopeSpans: []*tracepb.ScopeSpans{out}, SchemaUrl: r.SchemaURL(),
	}}}
}

func span(s sdktrace.ReadOnlySpan) *tracepb.Span {
	at, parent := s.SpanContext(), s.Parent()
	id, of := at.SpanID(), at.TraceID()
	out := &tracepb.Span{
		TraceId: of[:], SpanId: id[:], TraceState: at.TraceState().String(), Name: s.Name(), Flags: flags(at.TraceFlags(), parent.IsRemote()),
		Kind: kind(s.SpanKind()), StartTimeUnixNano: nanos(s.StartTime()), EndTimeUnixNano: nanos(s.EndTime()),
		Attributes: attributes(s.Attributes()), DroppedAttributesCount: uint32(max(0, s.DroppedAttributes())),
	}
	if parent.HasSpanID() {
		p := parent.SpanID()
		out.ParentSpanId = p[:]
	}
	if st := s.Status(); st.Code == codes.Error {
		out.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clean(st.Description)}
	}
	return out
}

// flags are those of W3C, and whether the parent is another process's, which is always known.
func flags(w3c trace.TraceFlags, remote bool) uint32 {
	f := uint32(w3c) | uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if remote {
		f |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return f
}

func kind(k trace.SpanKind) tracepb.Span_SpanKind {
	if k == trace.SpanKindServer {
		return tracepb.Span_SPAN_KIND_SERVER
	}
	return tracepb.Span_SPAN_KIND_INTERNAL
}

func nanos(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) }

func attributes(list []attribute.KeyValue) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, len(list))
	for i, kv := range list {
		out[i] = &commonpb.KeyValue{Key: clean(string(kv.Key)), Value: value(kv.Value)}
	}
	return out
}

func value(v attribute.Value) *commonpb.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean(v.String())}}
}

// clean makes a text one that protobuf takes: one request's id must not cost the spans of others.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
