package api

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// importPath is a route whose body is larger than maxBody, see streamed.
const importPath = "/v1/import"

// archiveType is what an archive's bytes are called.
const archiveType = "application/octet-stream"

// archiveStall is how long the other side of an archive may do nothing. There
// is no limit for the whole, which may be large and the way slow.
const archiveStall = time.Minute

// StoreStats is what the checkpoint store and its copies hold.
type StoreStats struct {
	snapshot.StoreStats
	Copies []coordinator.CopyStatus `json:"copies,omitempty"`
}

// bytesOf documents a body of bytes.
func bytesOf() map[string]*huma.MediaType {
	return map[string]*huma.MediaType{archiveType: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}
}

// archives registers the two routes whose bodies are no JSON. Both are written
// to the audit log: an archive holds all of a job's state.
func (r routes) archives() {
	out := huma.Operation{OperationID: "export-checkpoint", Method: http.MethodGet, Path: "/v1" + at + "/{checkpoint}/archive",
		Summary: "One checkpoint as a file that restores alone", DefaultStatus: 200, Errors: errorStatuses, BodyReadTimeout: -1, MaxBodyBytes: maxBody,
		Responses: map[string]*huma.Response{"200": {Description: "the bytes of an archive; they end with a footer, which is to be checked", Content: bytesOf()}}}
	declare(&out, operator)
	huma.Register(r.api, out, func(ctx context.Context, in *CheckpointPath) (*huma.StreamResponse, error) {
		cp, err := withAudit(ctx, r, in, r.toExport)
		if err != nil {
			return nil, problem(err)
		}
		return &huma.StreamResponse{Body: func(c huma.Context) { r.export(c, in.Job, cp.ID) }}, nil
	})
	in := huma.Operation{OperationID: "import-checkpoint", Method: http.MethodPost, Path: importPath,
		Summary: "Bring a checkpoint into a job's history", DefaultStatus: 202, Errors: errorStatuses, BodyReadTimeout: -1, MaxBodyBytes: maxBody, // the library reads no body here
		RequestBody: &huma.RequestBody{Required: true, Description: "the bytes of an archive", Content: bytesOf()}}
	declare(&in, admin) // a history that a restore would believe
	huma.Register(r.api, in, func(ctx context.Context, in *importInput) (*body[Operation], error) {
		op, err := withAudit(ctx, r, in, r.bringIn)
		if err != nil {
			return nil, problem(err)
		}
		return &body[Operation]{Body: op}, nil
	})
}

func (r routes) toExport(ctx context.Context, in *CheckpointPath) (snapshot.Checkpoint, error) {
	return r.Coordinator.Resolve(ctx, in.Job, in.which())
}

func (r routes) bringIn(ctx context.Context, in *importInput) (Operation, error) {
	a, err := r.receive(in.from)
	if err != nil {
		return Operation{}, err
	}
	req := coordinator.ImportRequest{Archive: a, Job: in.Job, Name: in.Name, Note: in.Note, Branch: in.Branch}
	if in.For != "" {
		req.Restore = &coordinator.RestoreRequest{As: in.As, AcceptSchema: in.AcceptSchema}
	}
	return started(r.Coordinator.Import(ctx, req))
}

// importInput is what an import is asked with; the archive is read by the
// handler itself.
type importInput struct {
	Job  string `query:"job" doc:"job to import into; the one that the archive names when empty"`
	Name string `query:"name" maxLength:"200" doc:"makes it a savepoint with this name"`
	Note string `query:"note" maxLength:"2000" doc:"a remark in the place of the checkpoint's own"`
	// What follows is of a restore that is to come after it.
	Branch       coordinator.Branch `query:"branch" enum:"live,given-up" doc:"whether the state that was live last descends from it; an undo checkpoint is taken for one that was given up when empty"`
	For          string             `query:"for" enum:"restore" doc:"restore: refused, with nothing imported, where the restore would be"`
	As           string             `query:"as" doc:"with for=restore: job to restore into; accepts another job name, prefix or server"`
	AcceptSchema bool               `query:"acceptSchema" doc:"with for=restore: accept registry entries that differ from the live ones"`

	from huma.Context
}

var _ huma.Resolver = (*importInput)(nil)

// Resolve implements huma.Resolver.
func (in *importInput) Resolve(ctx huma.Context) []error {
	in.from = ctx
	return nil
}

// export streams a checkpoint. What goes wrong before the first bytes have left
// is answered like any error; later it breaks the connection off, and the client
// has bytes without a footer.
func (r routes) export(c huma.Context, job string, id snapshot.ID) {
	_, w := humago.Unwrap(c)
	out := &patient{w: w, conn: http.NewResponseController(w)}
	first := bufio.NewWriterSize(out, 256<<10)
	err := r.Coordinator.Export(c.Context(), job, id.String(), first, nil)
	if err == nil {
		err = first.Flush()
	}
	switch {
	case err == nil:
		// A writer without deadlines is a test's.
		_ = out.conn.SetWriteDeadline(time.Time{})
	case out.began:
		panic(http.ErrAbortHandler) // the server closes the connection, and logs nothing
	default:
		f := coordinator.Explain(err)
		writeProblem(w, Status(f.Code), f)
	}
}

// patient waits for a slow reader as long as it reads.
type patient struct {
	w     http.ResponseWriter
	conn  *http.ResponseController
	began bool
}

var _ io.Writer = (*patient)(nil)

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	if !p.began {
		p.began = true
		p.w.Header().Set("Content-Type", archiveType)
	}
	_ = p.conn.SetWriteDeadline(time.Now().Add(archiveStall)) // as above
	return p.w.Write(b)
}

// receive takes an archive into a file that has no name: whatever happens,
// nothing of it is left.
func (r routes) receive(c huma.Context) (*archive.Archive, error) {
	req, w := humago.Unwrap(c)
	most := cmp.Or(r.MaxImport, int64(config.DefaultMaxImport))
	if req.ContentLength > most {
		return nil, importTooLarge(w, most, fmt.Sprintf("the archive has %d bytes", req.ContentLength))
	}
	f, err := os.CreateTemp(r.Spool, "keyframe-import-*")
	if err != nil {
		return nil, fault.Wrap(err, fault.Store, "the coordinator keeps an archive beside its store until it has verified it", "receive the archive")
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("receive the archive: %w", err), f.Close())
	}
	conn := http.NewResponseController(w)
	n, err := io.Copy(f, io.LimitReader(&steady{r: req.Body, conn: conn}, most+1))
	_ = conn.SetReadDeadline(time.Time{}) // a connection without deadlines is a test's
	switch {
	case err == nil && n > most:
		return nil, errors.Join(importTooLarge(w, most, "the archive goes on"), f.Close())
	case err != nil:
		return nil, errors.Join(fault.Wrap(err, fault.Failed, "nothing was changed; is there room beside the store?", "receive the archive: after %d bytes", n), f.Close())
	}
	a, err := archive.NewFile(f, n, "that was received")
	if err != nil {
		return nil, errors.Join(coordinator.Explain(err), f.Close())
	}
	return a, nil
}

// importTooLarge refuses an archive. What is left of it is not read: the
// connection ends with the answer.
func importTooLarge(w http.ResponseWriter, most int64, why string) error {
	w.Header().Set("Connection", "close")
	return fault.New(fault.TooLarge, "raise api.maxImport when there is room beside the store; nothing of it was kept",
		"an archive may have at most %d bytes (api.maxImport), and %s", most, why)
}

// steady reads from a sender as long as it sends.
type steady struct {
	r    io.Reader
	conn *http.ResponseController
}

var _ io.Reader = (*steady)(nil)

// Read implements io.Reader.
func (s *steady) Read(b []byte) (int, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(archiveStall)) // a connection without deadlines is a test's
	return s.r.Read(b)
}
