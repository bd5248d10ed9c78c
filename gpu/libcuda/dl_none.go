//go:build !linux || !(amd64 || arm64) || nogpu

package libcuda

import "errors"

// Built says whether this program can load a driver.
const Built = false

// errNotBuilt is why a binary without the loader finds no driver.
var errNotBuilt = errors.New("this kvconnd was built without GPU support (build tag nogpu, or a platform that CUDA is not for)")

func open(string) (uintptr, error) { return 0, errNotBuilt }

func find(uintptr, string) (uintptr, error) { return 0, errNotBuilt }

// invoke is never reached: no library is ever open.
func invoke(uintptr, ...uintptr) uintptr { panic(errNotBuilt) }
