package config

import "time"

// CopyCheck says how second copies are read again, in search of damage.
type CopyCheck struct {
	// Every is how often one copy of each directory is read whole, 0 for never.
	Every Duration `yaml:"every"`
	// Rate is how fast, in bytes per second; 0 is no bound.
	Rate Rate `yaml:"rate"`
}

// leastCopyCheck keeps a slip of the pen from reading all the time.
const leastCopyCheck = time.Minute

// defaultCopyCheck reads a directory of 700 copies once in a month, and takes
// little of a disk that does other work.
func defaultCopyCheck() CopyCheck {
	return CopyCheck{Every: Duration(time.Hour), Rate: 16 << 20}
}

func (c CopyCheck) check(l *list) {
	if c.Every != 0 && time.Duration(c.Every) < leastCopyCheck {
		l.add("store.checkCopies.every", c.Every.String(), "give 0 for never, or at least %s, such as 1h", leastCopyCheck)
	}
	if c.Rate < 0 || c.Rate > 0 && c.Rate < minReadRate {
		l.add("store.checkCopies.rate", c.Rate.String(), "give 0 for no bound, or at least %s", minReadRate)
	}
}
