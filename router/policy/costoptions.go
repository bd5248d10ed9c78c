package policy

// CostOptions configure the policy cost.
type CostOptions struct {
	// DecodeWeight is the part of the time that computing the whole prompt takes which a rank is
	// charged for holding the most decode blocks of all; others in proportion. Default 0.1; negative
	// means 0.
	DecodeWeight float64
	// BalanceWeight is how many times that time a rank is charged for each mean of recent work that
	// it has had beyond the mean. It keeps ranks even where queues are too short to tell. Default
	// 4; negative means 0.
	BalanceWeight float64
	// OverlapLoads says that a rank loads a prefix while it computes the prompts in front, so that
	// the longer of the two counts rather than the sum.
	OverlapLoads bool
}

// EnsureDefaults fills in what is not set.
func (o *CostOptions) EnsureDefaults() {
	o.DecodeWeight = orDefault(o.DecodeWeight, 0.1)
	o.BalanceWeight = orDefault(o.BalanceWeight, 4)
}
