// Package counters makes metrics and sums of structs whose fields say by tags what they count.
// The struct is the table: a new counter is a new field.
//
//	Reads uint64 `json:"reads" metric:"reads_total" help:"Records read and verified."`
//
// The tags of a field:
//
//   - metric is the metric's name. One that ends in _total is a counter, any other a gauge.
//     Numbers and bools can be metrics; true is 1. Of a struct, a pointer to one or a slice of
//     structs it begins the names of the metrics inside, and may be empty; without it they are
//     not looked at, unless the struct is embedded.
//   - help is the metric's description. Fields that share a metric leave it to the first.
//   - label is a label name. In a struct of a slice it marks the string that is the label's
//     value, for all metrics inside; they may have another label of their own. Beside metric it marks a map, whose keys are the label's values; with a value, as
//     in label:"decision=full", the field is one series of its metric.
//   - sum:"-" leaves a number out of [Add]: a speed or a state, which has no sum.
package counters

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

type collector[T any] struct {
	prefix string
	read   func() *T
}

// NewCollector returns a collector of the metrics of T. Their names begin with prefix; their
// values are those that one call of read returns for each scrape. read must be safe for
// concurrent use.
func NewCollector[T any](prefix string, read func() *T) prometheus.Collector {
	return &collector[T]{prefix, read}
}

// Describe sends every metric's description.
func (c *collector[T]) Describe(ch chan<- *prometheus.Desc) {
	w := walker{helps: make(map[string]string), sample: true}
	seen := make(map[string]bool)
	w.emit = func(s *series) {
		if !seen[s.name] {
			seen[s.name] = true
			ch <- s.desc()
		}
	}
	w.walk(c.prefix, reflect.ValueOf(new(T)), series{})
}

// Collect takes one reading and sends every metric.
func (c *collector[T]) Collect(ch chan<- prometheus.Metric) {
	w := walker{helps: make(map[string]string)}
	w.emit = func(s *series) {
		kind := prometheus.GaugeValue
		if kindOf(s.name) == "counter" {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(s.desc(), kind, s.number, s.values...)
	}
	w.walk(c.prefix, reflect.ValueOf(c.read()), series{})
}

// Metric describes one metric.
type Metric struct {
	Name, Help string
	// Kind is counter, gauge or histogram.
	Kind string
	// Labels are the names of its labels.
	Labels []string
}

// List describes the metrics of T, sorted by name: those that NewCollector with this prefix collects.
func List[T any](prefix string) []Metric {
	var list []Metric
	w := walker{helps: make(map[string]string), sample: true}
	seen := make(map[string]bool)
	w.emit = func(s *series) {
		if !seen[s.name] {
			seen[s.name] = true
			list = append(list, Metric{Name: s.name, Help: s.help, Kind: kindOf(s.name), Labels: s.labels})
		}
	}
	w.walk(prefix, reflect.ValueOf(new(T)), series{})
	slices.SortFunc(list, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func kindOf(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

// series is one value of a metric.
type series struct {
	name, help     string
	labels, values []string
	number         float64
}

func (s *series) desc() *prometheus.Desc { return prometheus.NewDesc(s.name, s.help, s.labels, nil) }

// with returns the series with one more label.
func (s series) with(name, value string) series {
	s.labels, s.values = append(slices.Clip(s.labels), name), append(slices.Clip(s.values), value)
	return s
}

type walker struct {
	// helps are the descriptions of the metrics that were found.
	helps map[string]string
	// sample has slices and maps walked as if they had one element.
	sample bool
	emit   func(*series)
}

// walk walks a struct, or what holds some; s has the label of what is found there.
func (w *walker) walk(prefix string, v reflect.Value, s series) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		w.walk(prefix, v.Elem(), s)
	case reflect.Slice:
		for i := range v.Len() {
			w.walk(prefix, v.Index(i), s)
		}
		if w.sample {
			w.walk(prefix, reflect.Zero(v.Type().Elem()), s)
		}
	case reflect.Struct:
		w.fields(prefix, v, s)
	}
}

func (w *walker) fields(prefix string, v reflect.Value, s series) {
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Type.Kind() == reflect.String && f.Tag.Get("label") != "" {
			s = s.with(f.Tag.Get("label"), v.Field(i).String())
		}
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, marked := f.Tag.Lookup("metric")
		switch f.Type.Kind() {
		case reflect.Struct, reflect.Pointer, reflect.Slice:
			if marked || f.Anonymous {
				w.walk(prefix+name, v.Field(i), s)
			}
		default:
			if marked {
				w.metric(prefix+name, f.Tag, v.Field(i), s)
			}
		}
	}
}

func (w *walker) metric(name string, tag reflect.StructTag, v reflect.Value, s series) {
	if w.helps[name] == "" {
		w.helps[name] = tag.Get("help")
	}
	s.name, s.help = name, w.helps[name]
	label, value, _ := strings.Cut(tag.Get("label"), "=")
	if v.Kind() != reflect.Map {
		if label != "" {
			s = s.with(label, value)
		}
		s.number = number(v)
		w.emit(&s)
		return
	}
	for it := v.MapRange(); it.Next(); {
		of := s.with(label, it.Key().String())
		of.number = number(it.Value())
		w.emit(&of)
	}
	if w.sample {
		of := s.with(label, "")
		w.emit(&of)
	}
}

// Add adds the numbers of src to those of dst, those of structs inside included. Fields with the
// tag sum:"-", fields that are not exported, and those that are neither numbers nor structs stay as
// they are.
func Add[T any](dst, src *T) { add(reflect.ValueOf(dst).Elem(), reflect.ValueOf(src).Elem()) }

func add(dst, src reflect.Value) {
	switch dst.Kind() {
	case reflect.Struct:
		for i := range dst.NumField() {
			f := dst.Type().Field(i)
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("sum") != "-" {
				add(dst.Field(i), src.Field(i))
			}
		}
	case reflect.Int, reflect.Int64:
		dst.SetInt(dst.Int() + src.Int())
	case reflect.Uint64:
		dst.SetUint(dst.Uint() + src.Uint())
	case reflect.Float64:
		dst.SetFloat(dst.Float() + src.Float())
	}
}

func number(v reflect.Value) float64 {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return 1
		}
		return 0
	case reflect.Int, reflect.Int64:
		return float64(v.Int())
	case reflect.Uint64:
		return float64(v.Uint())
	case reflect.Float64:
		return v.Float()
	}
	panic(fmt.Sprintf("counters: a %s is not a metric", v.Type()))
}
