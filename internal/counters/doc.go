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
//     value. Beside metric it marks a map, whose keys are the label's values; with a value, as
//     in label:"decision=full", the field is one series of its metric.
//   - sum:"-" leaves a number out of [Add]: a speed or a state, which has no sum.
package counters
