package policy

import "math"

// CostOptions configure the policy cost.
type CostOptions struct {
	// DecodeWeight is the charge for the rank that holds the most decode blocks, as a part of the time
	// that computing the whole prompt takes; others pay in proportion. Default 0.1; negative means 0.
	DecodeWeight float64
	// BalanceWeight is the charge, in the same unit, for each time that a rank's recent work exceeds the
	// mean by as much as the mean. It keeps ranks even where queues are too short to tell. Default 4;
	// negative means 0.
	BalanceWeight float64
	// OverlapLoads says that a rank loads a prefix while it computes the prompts before it, so that the
	// longer of the two counts rather than the sum.
	OverlapLoads bool
}

// EnsureDefaults fills in what is not set.
func (o *CostOptions) EnsureDefaults() {
	o.DecodeWeight = OrDefault(o.DecodeWeight, 0.1)
	o.BalanceWeight = OrDefault(o.BalanceWeight, 4)
}

// OrDefault returns v, 0 for a negative v, and d if v is zero or not a finite number.
func OrDefault(v, d float64) float64 {
	switch {
	case v < 0:
		return 0
	case v == 0 || math.IsNaN(v) || math.IsInf(v, 1):
		return d
	}
	return v
}
