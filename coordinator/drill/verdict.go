package drill

import (
	"maps"
	"slices"
	"strings"
	"time"

	"keyframe/snapshot"
)

// verdict collects what differs.
type verdict struct {
	res     *Result
	from    string // root of the scratch job
	to      string // what it is called in differences
	now     time.Time
	version string // of the server
}

// differ notes a difference, under the name that the checkpoint has.
func (v *verdict) differ(name, want, got string) {
	v.res.Differing++
	if len(v.res.Differences) < shown {
		name = strings.Replace(name, v.from+":", v.to+":", 1)
		v.res.Differences = append(v.res.Differences, Difference{Key: name, Want: want, Got: got})
	}
}

// apart compares the keys that are looked at one by one.
func (v *verdict) apart(want, got *content) {
	for _, name := range slices.Sorted(maps.Keys(want.special)) {
		w, g := want.special[name], listed(got.special, name)
		if !v.equal(w, g) {
			v.differ(name, w.say(), g.say())
		}
	}
}

// equal compares one key. One whose time has come may be gone. The bytes of an
// opaque key are only comparable between servers of one version; that the
// server took them has to do otherwise.
func (v *verdict) equal(want, got entry) bool {
	if want.expireAt != 0 && want.expireAt <= v.now.UnixMilli() && got.typ == snapshot.TypeMissing {
		return true
	}
	if want.typ == snapshot.TypeOpaque && got.typ == snapshot.TypeOpaque && want.server != v.version {
		return want.expireAt == got.expireAt && want.count == got.count
	}
	want.server, got.server = "", ""
	return want == got
}
