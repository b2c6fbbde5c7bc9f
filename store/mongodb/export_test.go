package mongodb

import "go.mongodb.org/mongo-driver/v2/mongo/options"

// ClientOptions are those of the driver's client that a store URL makes.
func ClientOptions(rawURL string) (*options.ClientOptions, error) {
	_, opts, err := parseURL(rawURL)
	return opts, err
}
