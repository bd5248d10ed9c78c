package settings

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/store/seal"
)

// Check reports what `serve` refuses.
func Check(ctx *kong.Context, resolver *Resolver, s *config.Serve) error {
	var room error
	if memory := config.Bytes(hostmemory.AvailableBytes()); s.HostBytes > memory {
		// It is taken as it is needed: the daemon would be killed later.
		room = fmt.Errorf("host_bytes is %s: there are %s of memory, in this machine or container", s.HostBytes, memory.WholeMiB())
	}
	access := AccessOf(s)
	_, misspelt := CheckEnvironment(ctx)
	err := errors.Join(misspelt, s.Validate(), access.Validate(), room)
	if err == nil {
		_, err = ObjectOptions(s)
	}
	if err == nil {
		_, err = LoadTenants(s.TenantsFile)
	}
	if err != nil {
		return fmt.Errorf("settings: %s", resolver.WithSources(ctx, err.Error()))
	}
	return nil
}

// AccessOf says who may connect.
func AccessOf(s *config.Serve) server.Access {
	return server.Access{Mode: fs.FileMode(s.SocketMode), Group: s.SocketGroup, UIDs: s.AllowUIDs, GIDs: s.AllowGIDs}
}

// LoadTenants reads a file of tenants; without a name there are none.
func LoadTenants(file string) (*tenantfile.Live, error) {
	if file == "" {
		return nil, nil
	}
	return tenantfile.Open(file)
}

// LoadKeys reads a key file; without a name there are no keys.
func LoadKeys(file string) (*seal.Ring, error) {
	if file == "" {
		return nil, nil
	}
	return seal.Load(file)
}
