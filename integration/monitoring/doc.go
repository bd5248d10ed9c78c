// Package monitoring runs Prometheus itself, as a library, on the dashboards and alerts of deploy/monitoring: every
// expression parses, and a real run gives every panel data. It is a module of its own, so that the daemon does not require
// Prometheus.
package monitoring
