package restore

import (
	"bytes"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// renamer gives the keys of another job's checkpoint this job's root: names,
// and the names that the schema registry has as its fields. Source keys belong
// to no root and may be another job's: keep decides. A name that the index
// lists without being the job's stays as it is, unless it lies under this job's
// root: then it would become this job's state, and is left out.
type renamer struct {
	next     snapshot.Sink
	from, to statebackend.Job
	keep     func(name []byte) bool
	claimed  func(name []byte) // told of names that are left out; may be nil

	skip     bool
	registry bool
	digest   snapshot.Digester // of the registry, whose fields change
	name     []byte
}

var _ snapshot.Sink = (*renamer)(nil)

// BeginKey renames the key.
func (r *renamer) BeginKey(k snapshot.Key) error {
	r.skip, r.registry = false, false
	if k.Section == snapshot.SectionSource {
		r.skip = !r.keep(k.Name)
		if r.skip {
			return nil
		}
		return r.next.BeginKey(k)
	}
	if k.Section == snapshot.SectionMeta && string(k.Name) == r.from.Registry() {
		r.registry = true
		r.digest.Reset(k.Type)
	}
	name, ok := r.rename(k.Name)
	switch {
	case ok:
		k.Name = name
	case !indexed(k.Section):
		return errOutside(k.Name, r.from, r.to)
	case bytes.HasPrefix(k.Name, []byte(r.to.Root()+":")):
		r.skip = true
		if r.claimed != nil {
			r.claimed(k.Name)
		}
		return nil
	}
	return r.next.BeginKey(k)
}

// rename gives a name the new root; false when it doesn't lie under the old
// one. The bytes are valid until the next call.
func (r *renamer) rename(name []byte) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(name, []byte(r.from.Root()+":"))
	if !ok {
		return nil, false
	}
	r.name = append(r.name[:0], r.to.Root()...)
	r.name = append(r.name, ':')
	r.name = append(r.name, rest...)
	return r.name, true
}

// Element renames a field of the registry; a field that isn't under the root
// describes no key of the job and stays.
func (r *renamer) Element(e snapshot.Element) error {
	if r.skip {
		return nil
	}
	if r.registry {
		if name, ok := r.rename(e.Field); ok {
			e.Field = name
		}
		r.digest.Element(e)
	}
	return r.next.Element(e)
}

// Part passes on.
func (r *renamer) Part(b []byte) error {
	if r.skip {
		return nil
	}
	if r.registry {
		r.digest.Part(b)
	}
	return r.next.Part(b)
}

// EndKey gives the renamed registry its own digest.
func (r *renamer) EndKey(e snapshot.KeyEnd) error {
	if r.skip {
		return nil
	}
	if r.registry {
		e.Digest = r.digest.Sum()
	}
	return r.next.EndKey(e)
}
