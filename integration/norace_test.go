//go:build !race

package integration

func buildFlags() []string { return nil }
