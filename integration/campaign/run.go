package campaign

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/fault"
	"github.com/kvconn/kvconn/store"
)

// CaseOutcome is what a case found.
type CaseOutcome struct {
	// Failures are the promises that were broken, each with its class before a colon.
	Failures []string
	// Injected is how many operations the script acted on.
	Injected int64
	Warnings string
}

// Class is what the first failure is about, "" if there is none.
func (o *CaseOutcome) Class() string {
	if len(o.Failures) == 0 {
		return ""
	}
	class, _, _ := strings.Cut(o.Failures[0], ":")
	return class
}

// caseRun is a case under way.
type caseRun struct {
	c        *Case
	dir      string
	limits   limits
	store    *subject
	injector *fault.Injector
	contents contents
	sampler  sampler
	out      CaseOutcome
	faulty   bool
	lease    store.LeaseID
	moves    int
	log      []*warnings
	// saved is everything that was ever written; clean are the records whose save succeeded,
	// durable those of them that a barrier covers.
	saved   map[Record]bool
	clean   map[Record]bool
	durable map[Record]bool
	// evicted is how many records the stores that are down have evicted.
	evicted uint64
}

// Run runs the case below dir, which it makes and removes. For any steps it checks that
//
//   - no read brings wrong bytes, and no call hangs,
//   - the bytes on the disk never pass the cap while the store is open, leave min_free of a disk
//     that has a size, and are what the store counts,
//   - once the faults are over the store starts, and saves and reads of both sizes work within
//     a few tries,
//   - nothing durable is lost where nothing had to be evicted and no clause damages data,
//   - a stop leaves no descriptor behind, and the next start has what was durable.
func (c *Case) Run(dir string) CaseOutcome {
	r := &caseRun{
		c: c, dir: filepath.Join(dir, "store"), limits: limits{c.Cap, c.Disk}, injector: fault.NewInjector(c.Script),
		saved: make(map[Record]bool), clean: make(map[Record]bool), durable: make(map[Record]bool),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.fail("prepare", err)
		return r.out
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r.sampler.start()
	r.start()
	for _, s := range c.Steps {
		if r.step(s); r.out.Class() == classHang {
			break
		}
	}
	r.end()
	if most := r.sampler.stop(); most != nil {
		r.fail("cap passed", most)
	}
	r.out.Injected = r.injector.Injected()
	var lines []string
	for _, l := range r.log {
		lines = append(lines, l.String())
	}
	r.out.Warnings = strings.Join(lines, "\n")
	return r.out
}

const classHang = "hang"

func (r *caseRun) fail(class string, err error) {
	if errors.Is(err, ErrHang) {
		class = classHang
	}
	if errors.Is(err, ErrWrongBytes) {
		class = "wrong bytes"
	}
	r.out.Failures = append(r.out.Failures, fmt.Sprintf("%s: %s", class, strings.ReplaceAll(err.Error(), r.dir, "STORE")))
}

// start opens the store. While there are faults it may fail.
func (r *caseRun) start() {
	if r.store != nil {
		return
	}
	s, err := open(r.dir, r.limits, r.injector, &r.contents)
	if err == nil {
		if err = s.openNamespaces(); err != nil {
			err = errors.Join(err, s.close())
		}
	}
	switch {
	case err == nil:
		r.store, r.log = s, append(r.log, s.log)
		r.sampler.watch(r.dir, r.limits)
		return
	case !r.faulty:
		r.fail("start", err)
	case errors.Is(err, ErrHang):
		r.fail(classHang, err)
	}
	r.exit()
}

// exit does what the end of the process would do for a store that could not be closed, so that
// nothing it has open or locked hinders the next.
func (r *caseRun) exit() {
	old := r.dir
	r.move()
	_ = os.RemoveAll(old)
}

// move continues with a copy of the directory, which no store has open.
func (r *caseRun) move() {
	r.moves++
	next := filepath.Join(filepath.Dir(r.dir), fmt.Sprint("store-", r.moves))
	if err := copyTree(next, r.dir); err != nil {
		r.fail("prepare", err)
	}
	r.dir, r.store, r.lease = next, nil, 0
}

// stop closes the store. What was saved before is durable if nothing failed.
func (r *caseRun) stop() {
	if r.store == nil {
		return
	}
	r.sampler.watch("", limits{})
	r.evicted += r.store.Stats().Evicted
	err := r.store.close()
	r.store, r.lease = nil, 0
	switch {
	case err == nil:
		r.madeDurable()
		return
	case !r.touched() || errors.Is(err, ErrHang):
		r.fail("stop", err)
	}
	r.exit()
	r.onlyDurable()
}

// onlyDurable forgets what no barrier has made durable.
func (r *caseRun) onlyDurable() {
	r.clean = make(map[Record]bool)
	for k := range r.durable {
		r.clean[k] = true
	}
}

// touched reports whether there has been a fault at all.
func (r *caseRun) touched() bool { return r.injector.Injected() > 0 }

func (r *caseRun) madeDurable() {
	for k := range r.clean {
		r.durable[k] = true
	}
}

// kill puts a copy of the directory in the store's place, as kill -9 would leave it.
func (r *caseRun) kill() {
	if r.store == nil {
		return
	}
	r.sampler.watch("", limits{})
	thaw := r.injector.Freeze()
	time.Sleep(settle)
	old, oldDir := r.store, r.dir
	r.move()
	// What the old store does from now on does not matter; it only must end.
	r.injector.Off()
	thaw()
	r.evicted += old.Stats().Evicted
	if err := old.close(); errors.Is(err, ErrHang) {
		r.fail(classHang, err)
	}
	_ = os.RemoveAll(oldDir)
	r.onlyDurable()
	if r.faulty {
		r.injector.On()
	}
}

// step does one step. Steps that need an open store do nothing without one.
func (r *caseRun) step(s Step) {
	switch s.Verb {
	case "faults":
		if r.faulty = s.Args[0] == "on"; r.faulty {
			r.injector.On()
		} else {
			r.injector.Off()
		}
	case "wait":
		d, _ := time.ParseDuration(s.Args[0])
		time.Sleep(d)
	case "start":
		r.start()
	case "stop":
		r.stop()
	case "kill":
		r.kill()
	case "cap":
		r.limits.cap = int64(s.number(0))
	case "damage":
		r.damage(s)
	case "opens":
		if r.store == nil {
			r.fail("opens", errors.New("the store did not start"))
		}
	case "hide", "show":
		r.mount(s.Verb == "show")
	default:
		if r.store != nil {
			r.use(s)
		}
	}
}

// use does a step on an open store.
func (r *caseRun) use(s Step) {
	switch s.Verb {
	case "save":
		r.save(s.records())
	case "saves":
		records := s.records()
		if n := r.save(records); 100*n < s.number(3)*len(records) {
			r.fail("saves", fmt.Errorf("%v: %d of %d were written", s, n, len(records)))
		}
	case "read":
		r.read(s.records())
	case "kept":
		if err := r.store.rebuilt(); err != nil {
			r.fail("kept", err)
		}
		records := s.records()
		if n := r.read(records); 100*n < s.number(3)*len(records) {
			r.fail("kept", fmt.Errorf("%v: %d of %d are there", s, n, len(records)))
		}
	case "sync":
		if err := r.store.sync(); err == nil {
			r.madeDurable()
		} else if !r.touched() || errors.Is(err, ErrHang) {
			r.fail("sync", err)
		}
	case "hold":
		r.release()
		r.lease = r.store.hold(s.records())
	case "release":
		r.release()
	}
}

func (r *caseRun) release() {
	if r.lease != 0 {
		r.store.Release(r.lease)
		r.lease = 0
	}
}

// save saves records and returns how many were written, which are all where there is room and was no fault.
func (r *caseRun) save(records []Record) (written int) {
	save := r.store.save
	if !r.touched() && r.limits.cap >= calmCap && r.limits.disk == 0 && r.lease == 0 {
		save = r.store.saveAgain
	}
	errs, err := save(records)
	if err != nil {
		r.fail("save", err)
		return 0
	}
	for i, e := range errs {
		r.saved[records[i]] = true
		if e == nil {
			written++
			r.clean[records[i]] = true
		}
	}
	return written
}

// read reads records and returns how many came.
func (r *caseRun) read(records []Record) (came int) {
	errs, err := r.store.read(records)
	if err != nil {
		r.fail("read", err)
	}
	for _, e := range errs {
		if e == nil {
			came++
		}
	}
	return came
}

// mount takes the segments' directory away or brings it back. The store must be down.
func (r *caseRun) mount(there bool) {
	at, away := filepath.Join(r.dir, "segments"), filepath.Join(filepath.Dir(r.dir), "away")
	if r.store != nil {
		return
	}
	var err error
	if _, stat := os.Stat(away); there && stat == nil {
		err = errors.Join(os.RemoveAll(at), os.Rename(away, at))
	} else if !there {
		err = errors.Join(os.Rename(at, away), os.Mkdir(at, 0o700))
	}
	if err != nil {
		r.fail("prepare", err)
	}
}

// damage does something to one file of the store that is down.
func (r *caseRun) damage(s Step) {
	if r.store != nil {
		return
	}
	var s2 snapshot
	s2.dir = r.dir
	var files []string
	for _, path := range listFiles(r.dir) {
		if fault.Match(s.Args[1], filepath.ToSlash(path)) {
			files = append(files, path)
		}
	}
	if len(files) == 0 {
		return
	}
	// The last by name: of numbered files the newest.
	s2.files = files[len(files)-1:]
	g := rand.New(rand.NewPCG(uint64(s.number(2)), 1))
	if _, err := s2.inflict(r.dir, Cell{Kind: kindOf(s2.files[0], s2.files), Fault: damageWords()[s.Args[0]]}, g); err != nil {
		r.fail("prepare", err)
	}
}

// lossy reports whether the case may lose records by what it is.
func (r *caseRun) lossy() bool {
	for i := range r.c.Script {
		c := &r.c.Script[i]
		e := &c.Effect
		reads := c.Kind == fault.Read || c.Kind == fault.Any
		if e.Flip > 0 || e.Drop || e.Full || reads && e.Errno != 0 {
			return true
		}
	}
	return slices.ContainsFunc(r.c.Steps, func(s Step) bool { return s.Verb == "damage" || s.Verb == "cap" || s.Verb == "hide" }) || r.c.Cap < calmCap || r.c.Disk > 0
}

// fills reports whether a clause makes the disk full for new or growing files. The store then
// stays within the room it has, and evicts for new records.
func (c *Case) fills() bool {
	makes := []fault.Kind{fault.Any, fault.Create, fault.Write, fault.Sync, fault.Rename, fault.Allocate, fault.Mkdir}
	return slices.ContainsFunc(c.Script, func(l fault.Clause) bool {
		return (l.Effect.Errno == syscall.ENOSPC || l.Effect.Errno == syscall.EDQUOT) && slices.Contains(makes, l.Kind)
	})
}

// calmCap is a cap under which no case has to evict.
const calmCap = 64 << 20
