package restore

import (
	"fmt"
	"strings"
)

// outsideShow is how many names a warning tells.
const outsideShow = 3

// outside collects names that a job's index lists and that are no state of it
// (statebackend.Job.Owns): a restore leaves the keys under them as they are.
type outside struct {
	count uint64
	first []string
}

func (o *outside) add(name []byte) {
	if o.count++; len(o.first) < outsideShow {
		o.first = append(o.first, fmt.Sprintf("%.100q", name))
	}
}

// list tells the first names, and how many more there are.
func (o *outside) list() string {
	text := strings.Join(o.first, ", ")
	if more := o.count - uint64(len(o.first)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// warnings is what a plan and a result say of them.
func (o *outside) warnings() []string {
	if o.count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the index lists names that are no state of the job: %s; "+
		"names outside the job's root are left as they are, and so are its own bookkeeping keys", o.list())}
}

// claimedWarnings is about names that a checkpoint of another job lists and
// that lie under this job's root.
func (o *outside) claimedWarnings(root string) []string {
	if o.count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the checkpoint's index lists names under %q, which are not the other job's and are left out: %s", root, o.list())}
}
