// Package routerbench measures the router: the functions behind `kvconnd bench router`.
package routerbench
