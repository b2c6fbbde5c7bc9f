package mongodb

import (
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
)

// ClientOptions returns the options of the driver's client for a store URL.
func ClientOptions(rawURL string) (*options.ClientOptions, error) {
	_, _, opts, err := parseURL(rawURL)
	return opts, err
}

// Expect makes the next claim of a lane expect n occurrences.
func Expect(s *Store, lane job.Lane, n int) {
	s.expected.mu.Lock()
	defer s.expected.mu.Unlock()
	s.expected.lanes = map[job.Lane]int{lane: n}
}
