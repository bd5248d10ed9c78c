package model

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// minParallelCost is the number of multiplications below which starting goroutines costs
// more than it saves.
const minParallelCost = 1 << 17

// parallel runs tasks 0 to n-1 on as many goroutines as there are processors. Each takes
// its function from worker, so that it may keep scratch memory there. Tasks must not
// depend on one another: which goroutine runs which is left to chance, the result is not.
func parallel(n, cost int, worker func() func(task int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if cost < minParallelCost {
		workers = 1
	}
	var next atomic.Int64
	loop := func() {
		run := worker()
		for task := int(next.Add(1)) - 1; task < n; task = int(next.Add(1)) - 1 {
			run(task)
		}
	}
	var group sync.WaitGroup
	for range workers - 1 {
		group.Go(loop)
	}
	loop()
	group.Wait()
}

// tiles runs f over all rows of the batch, tileRows at a time. costPerRow is in
// multiplications.
func (m *Model) tiles(costPerRow int, f func(first, n int)) {
	rows := len(m.scratch.rows)
	// Few rows are spread over the cores rather than computed together.
	size := tileRows
	if rows < 2*tileRows {
		size = tileRows / 2
	}
	parallel((rows+size-1)/size, rows*costPerRow, func() func(int) {
		return func(task int) { f(task*size, min(size, rows-task*size)) }
	})
}
