module github.com/carillon-scheduler/carillon/client

go 1.26.0
