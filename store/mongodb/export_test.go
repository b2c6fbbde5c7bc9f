package mongodb

import (
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
)

// ClientOptions are those of the driver's client that a store URL makes.
func ClientOptions(rawURL string) (*options.ClientOptions, error) {
	_, _, opts, err := parseURL(rawURL)
	return opts, err
}

// Expect has the next claim of a lane expect so many occurrences.
func Expect(s *Store, lane job.Lane, n int) {
	s.expected.mu.Lock()
	defer s.expected.mu.Unlock()
	s.expected.lanes = map[job.Lane]int{lane: n}
}
