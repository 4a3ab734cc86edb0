package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	howToWrite = `write five fields such as "*/5 * * * *" (minute hour day month weekday), @hourly, @daily or "@every 30s"`
	howToZone  = `write the zone first, then the schedule, such as "CRON_TZ=Europe/Berlin 0 3 * * *"`
	howToEvery = `give a duration of at least one second, such as "@every 30s"`
)

// maxSpec is the longest schedule that is looked at, in bytes; all 60 minutes
// written out need less.
const maxSpec = 1024

// Parse reads a schedule. It never panics. Errors are of type *Error: the
// empty text, an unknown zone or one without a schedule, six fields (seconds
// are not a field here), @every with less than a second or a fraction of one,
// and dates that never come, such as February 30.
func Parse(spec string) (Schedule, error) {
	fields := strings.Fields(spec)
	if len(spec) > maxSpec {
		return Schedule{}, refuse(spec[:40]+"…", "it is too long", howToWrite)
	}
	zone := time.UTC
	if len(fields) > 0 {
		var err error
		if name, ok := cutZone(fields[0]); ok {
			if zone, err = loadZone(spec, name); err != nil {
				return Schedule{}, err
			}
			if fields = fields[1:]; len(fields) == 0 {
				return Schedule{}, refuse(spec, "a zone alone is no schedule", howToZone)
			}
		}
	}
	if len(fields) == 0 {
		return Schedule{}, refuse(spec, "it is empty", howToWrite)
	}
	if fields[0] == "@every" {
		return parseEvery(spec, fields[1:])
	}
	return parseFields(spec, fields, zone)
}

// cutZone tells whether a field names the zone, and which.
func cutZone(field string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(field, "CRON_TZ="); ok {
		return name, true
	}
	return strings.CutPrefix(field, "TZ=")
}

// loadZone refuses what time.LoadLocation takes for UTC or for the zone of the
// machine: such a schedule would mean something else on the next machine.
func loadZone(spec, name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, refuse(spec, fmt.Sprintf("%q is no fixed time zone", name), howToZone)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, refuse(spec, fmt.Sprintf("time zone %q is unknown", name), howToZone)
	}
	return zone, nil
}

func parseEvery(spec string, fields []string) (Schedule, error) {
	if len(fields) != 1 {
		return Schedule{}, refuse(spec, "@every needs one duration", howToEvery)
	}
	d, err := time.ParseDuration(fields[0])
	switch {
	case err != nil:
		return Schedule{}, refuse(spec, fmt.Sprintf("%q is no duration", fields[0]), howToEvery)
	case d <= 0:
		return Schedule{}, refuse(spec, fmt.Sprintf("%s lies not in the future", d), howToEvery)
	case d < time.Second:
		return Schedule{}, refuse(spec, fmt.Sprintf("%s is under one second", d), howToEvery)
	case d%time.Second != 0:
		return Schedule{}, refuse(spec, fmt.Sprintf("%s has a fraction of a second", d), "give whole seconds, such as \"@every 30s\"")
	}
	return Schedule{spec: spec, every: d}, nil
}

// parseFields reads a descriptor or five fields.
func parseFields(spec string, fields []string, zone *time.Location) (Schedule, error) {
	if err := checkFields(spec, fields); err != nil {
		return Schedule{}, err
	}
	c, err := parseCron(strings.Join(fields, " "))
	if err != nil {
		return Schedule{}, refuse(spec, err.Error(), howToWrite)
	}
	// Five years from any date hold all months and weekdays, and eleven hold
	// a February 29: what is not due by then is never due.
	if nextWall(c, time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, refuse(spec, "it never comes, there is no such date", "name a day that its month has")
	}
	const allHours = 1<<24 - 1
	return Schedule{
		spec: spec, cron: c, zone: zone,
		anyHour: c.Hour&allHours == allHours || len(fields) > 1 && strings.HasPrefix(fields[1], "*"),
	}, nil
}

// checkFields refuses what the library reads as something else.
func checkFields(spec string, fields []string) error {
	if strings.HasPrefix(fields[0], "@") {
		return nil
	}
	if len(fields) == 6 {
		return refuse(spec, "it has six fields, but seconds are not a field here", howToWrite)
	}
	if len(fields) != 5 {
		return refuse(spec, fmt.Sprintf("it has %d fields, not five", len(fields)), howToWrite)
	}
	for i, f := range fields {
		for _, item := range strings.Split(f, ",") {
			if problem, remedy := checkItem(item, places[i]); problem != "" {
				return refuse(spec, fmt.Sprintf("field %q: %s", f, problem), remedy)
			}
		}
	}
	return nil
}

// place is one of the five fields.
type place struct {
	name string
	last int // largest value
}

var places = [5]place{{"minute", 59}, {"hour", 23}, {"day", 31}, {"month", 12}, {"weekday", 6}}

// checkItem finds an item of a field's list that the library would read as
// something else than it says; "" when there is nothing to find.
func checkItem(item string, in place) (problem, remedy string) {
	if item == "" {
		return "an item of its list is empty", "remove the comma that is too many"
	}
	values, step, stepped := strings.Cut(item, "/")
	if strings.HasPrefix(values, "*-") || strings.HasPrefix(values, "?-") {
		return "a range can't begin with a wildcard", "write both ends, such as 1-5"
	}
	if n, err := strconv.Atoi(step); stepped && err == nil && n > in.last {
		return fmt.Sprintf("step %d goes beyond the %s field", n, in.name),
			fmt.Sprintf("give a step of at most %d, or @every for other distances", in.last)
	}
	return "", ""
}

// parseCron is the library's parser with its panics turned into errors: it
// cuts strings at places that it has not looked for.
func parseCron(line string) (c *cron.SpecSchedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			c, err = nil, fmt.Errorf("the parser gave up (%v)", r)
		}
	}()
	parsed, err := cron.ParseStandard(line)
	if err != nil {
		return nil, err
	}
	c, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("it is of a kind that is not known here (%T)", parsed)
	}
	c.Location = time.UTC
	return c, nil
}

func refuse(spec, problem, remedy string) error {
	return &Error{Spec: spec, Problem: problem, Remedy: remedy}
}

func quote(s string) string { return strconv.Quote(s) }
