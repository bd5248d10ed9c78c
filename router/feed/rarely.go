package feed

import "time"

// saidEvery is how often a line that says the same is written.
const saidEvery = time.Minute

// rarely has a line that could come with each batch written once a minute at most, the first time at once.
type rarely struct {
	next  time.Time
	times int
}

// due returns how often there was reason for the line since it was last written, 0 if it is not to be written now.
func (r *rarely) due(now time.Time) (times int) {
	r.times++
	if now.Before(r.next) {
		return 0
	}
	times, r.times, r.next = r.times, 0, now.Add(saidEvery)
	return times
}
