package api

import (
	"path"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/doctor"
	"keyframe/snapshot"
)

// schemaNames are the types whose own name says too little in the OpenAPI
// document.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[Problem]():                   "ErrorAnswer",
	reflect.TypeFor[Operation]():                 "Operation",
	reflect.TypeFor[Job]():                       "Job",
	reflect.TypeFor[Detail]():                    "CheckpointDetail",
	reflect.TypeFor[doctor.Report]():             "DoctorReport",
	reflect.TypeFor[doctor.Finding]():            "DoctorFinding",
	reflect.TypeFor[List[Job]]():                 "JobList",
	reflect.TypeFor[List[Operation]]():           "OperationList",
	reflect.TypeFor[List[KeyPlace]]():            "KeyPlaceList",
	reflect.TypeFor[List[coordinator.Event]]():   "EventList",
	reflect.TypeFor[List[snapshot.Checkpoint]](): "CheckpointList",
}

// schemaName names a type in the OpenAPI document. Types of the same name from
// different packages get the package in front, since the library ignores it.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := schemaNames[t]; ok {
		return name
	}
	name := huma.DefaultSchemaNamer(t, hint)
	switch pkg := path.Base(t.PkgPath()); pkg {
	case "restore", "rescaler", "config":
		prefix := strings.ToUpper(pkg[:1]) + pkg[1:]
		if pkg == "rescaler" {
			prefix = "Rescale"
		}
		return prefix + name
	}
	return name
}

// schemas is the registry of the document's types.
func schemas() huma.Registry {
	r := huma.NewMapRegistry("#/components/schemas/", schemaName)
	text := reflect.TypeFor[string]()
	r.RegisterTypeAlias(reflect.TypeFor[config.Duration](), text)
	r.RegisterTypeAlias(reflect.TypeFor[config.Rate](), text)
	r.RegisterTypeAlias(reflect.TypeFor[snapshot.ChunkID](), text)
	return r
}
