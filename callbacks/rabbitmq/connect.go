package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Dialer opens connections to the broker for other uses than sending. Its methods are safe for concurrent use.
type Dialer struct {
	options Options
	address string
}

// Dialer returns a dialer by the options. Options that can never work are an error at once.
func (o *Options) Dialer() (*Dialer, error) {
	uri, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if _, err := tlsConfig(*o, uri); err != nil {
		return nil, err
	}
	return &Dialer{options: *o, address: fmt.Sprintf("%s:%d, vhost %s", uri.Host, uri.Port, uri.Vhost)}, nil
}

// Address returns the broker's address for logs, without credentials.
func (d *Dialer) Address() string { return d.address }

// MayUse reports whether a tenant may use a queue.
func (d *Dialer) MayUse(tenant, queue string) bool {
	return d.options.Allow.Allow(tenant, "queue:"+queue)
}

// Connect opens a connection, which the broker shows by the name. The error has no credentials in it.
func (d *Dialer) Connect(ctx context.Context, name string) (*amqp.Connection, error) {
	uri, err := parseURL(d.options.URL)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(d.options, uri)
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(time.Duration(uri.ConnectionTimeout)*time.Millisecond, dialLimit)
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	return amqp.DialConfig(d.options.URL, amqp.Config{
		Heartbeat: d.options.Heartbeat, TLSClientConfig: config, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			socket, err := (&net.Dialer{Timeout: limit}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return socket, socket.SetDeadline(time.Now().Add(limit)) // for the handshakes; the library lifts it then
		},
	})
}
