package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ClientOptions returns the options by which a client for another use than sending connects to the cluster: addresses,
// TLS and login. An error names the wrong option; it has no password in it.
func (o *Options) ClientOptions() ([]kgo.Opt, error) {
	brokers := addresses(o.Brokers)
	if err := checkAddresses(brokers); err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.ClientID("carillon"), kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics(),
	}
	if o.Logger != nil {
		opts = append(opts, kgo.WithLogger(logger{o.Logger}))
	}
	security, err := securityOptions(*o)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(*o)
	if err != nil {
		return nil, err
	}
	if config != nil {
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	return append(opts, security...), nil
}

// MayUse reports whether a tenant may use a topic.
func (o *Options) MayUse(tenant, topic string) bool { return o.Allow.Allow(tenant, topic) }

// addresses returns the brokers without the spaces that a list may have after its commas.
func addresses(brokers []string) []string {
	brokers = slices.Clone(brokers)
	for i, address := range brokers {
		brokers[i] = strings.TrimSpace(address)
	}
	return brokers
}

func checkAddresses(brokers []string) error {
	if len(brokers) == 0 {
		return errors.New("kafka: no broker is given; give host:port of at least one")
	}
	for _, address := range brokers {
		if !validAddress(address) {
			return fmt.Errorf("kafka: %q is not the address of a broker, which is host:port", address)
		}
	}
	return nil
}
