// Package storebench measures the record store against the device below it, in one run:
// the functions behind `kvconnd bench store` and `kvconnd bench index`.
package storebench
