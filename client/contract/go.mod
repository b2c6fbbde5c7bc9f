// The tests of the client against the service are a module of their own: the client needs nothing but the standard
// library, not even for its tests. The versions of all other modules are those of the service, by go.work.
module github.com/carillon-scheduler/carillon/client/contract

go 1.26.0

require (
	github.com/carillon-scheduler/carillon v0.0.0
	github.com/carillon-scheduler/carillon/client v0.0.0
)
