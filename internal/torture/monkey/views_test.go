package monkey

import "time"

// What the API answers, as far as it matters here.

type jobView struct {
	Paused bool `json:"paused"`
	Health struct {
		State   string `json:"state"`
		Message string `json:"message"`
	} `json:"health"`
	Epoch       uint64 `json:"epoch"`
	Parallelism int    `json:"parallelism"`
	Leader      *struct {
		Token uint64 `json:"token"`
		Me    bool   `json:"me"`
	} `json:"leader"`
	Operation *operationView `json:"operation"`
	Recovery  *struct {
		Attempts  int    `json:"attempts"`
		LastError string `json:"lastError"`
	} `json:"recovery"`
	InDoubt []uint64 `json:"inDoubt"`
	Undo    uint64   `json:"undo"`
	Head    uint64   `json:"head"`
}

type operationView struct {
	ID    string `json:"id"`
	Kind  string `json:"kind"`
	State string `json:"state"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (o operationView) final() bool { return o.State == "done" || o.State == "failed" }

type checkpointView struct {
	ID        uint64    `json:"id"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Trigger   string    `json:"trigger"`
	State     string    `json:"state"`
	Grade     string    `json:"grade"`
	StartedAt time.Time `json:"startedAt"`
	Pinned    bool      `json:"pinned"`
	Bad       string    `json:"bad"`
	Failure   *struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"failure"`
}

func (c checkpointView) completed() bool { return c.State == "completed" }

// restorable is completed and not known to be damaged.
func (c checkpointView) restorable() bool { return c.completed() && c.Bad == "" }

type listOf[T any] struct {
	Items []T `json:"items"`
}

const jobPath = "/jobs/" + jobName

func (d *daemon) job() (j jobView, err error) {
	err = d.call("GET", jobPath, &j)
	return j, err
}

// history lists the job's checkpoints, oldest first.
func (d *daemon) history() ([]checkpointView, error) {
	var l listOf[checkpointView]
	err := d.call("GET", jobPath+"/checkpoints", &l)
	return l.Items, err
}

func (d *daemon) operations() ([]operationView, error) {
	var l listOf[operationView]
	err := d.call("GET", "/operations", &l)
	return l.Items, err
}

// newest is the newest restorable checkpoint of a history, 0 when there is none.
func newest(history []checkpointView) uint64 {
	id := uint64(0)
	for _, c := range history {
		if c.restorable() {
			id = c.ID
		}
	}
	return id
}
