package wait

import (
	"fmt"
	"os"
	"runtime"
	"slices"
)

// testsAtOnce is how many tests of a package run at once where most of them wait: for a daemon to
// start, a barrier, a timeout. With one for each processor the machine would idle.
const testsAtOnce = 6

// AllowAtOnce lets tests that call Parallel run more at once than there are processors. A TestMain
// calls it before the tests run. It adds an argument before the others, so that -parallel counts if
// it is given.
func AllowAtOnce() {
	os.Args = slices.Insert(os.Args, 1, fmt.Sprint("-test.parallel=", max(testsAtOnce, runtime.GOMAXPROCS(0))))
}
