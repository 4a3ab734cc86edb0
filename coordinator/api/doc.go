// Package api is the coordinator's HTTP JSON API under /v1 with its OpenAPI
// document, and the one client of it. Server and client share their types.
//
// Long operations return at once with an operation to follow
// (GET /v1/operations/{id}, with ?wait= for a long poll). Errors are
// {"error":{"code","message","hint"}} with a code of package fault.
package api
