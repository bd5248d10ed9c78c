package zmtp

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// splitEndpoint turns tcp://host:port and ipc://path into network and address of package net.
func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok || rest == "":
	case scheme == "tcp":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		return "tcp", strings.Replace(rest, "*", "", 1), nil
	case scheme == "ipc":
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
}

// Offset is the endpoint of a data-parallel rank: engines add the rank to the port. An ipc endpoint has no port
// and belongs to rank 0 alone.
func Offset(endpoint string, rank int) (string, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil || rank == 0 {
		return endpoint, err
	}
	if network != "tcp" {
		return "", fmt.Errorf("endpoint %q has no port to add rank %d to", endpoint, rank)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || rank < 0 || n < 1 || n+rank > 65535 {
		return "", fmt.Errorf("endpoint %q: port %s with rank %d added is no port", endpoint, port, rank)
	}
	if strings.Contains(endpoint, "//*:") {
		host = "*"
		return "tcp://*:" + strconv.Itoa(n+rank), nil
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}
