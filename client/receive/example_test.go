package receive_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/carillon-scheduler/carillon/client/receive"
)

// A receiver passes on genuine deliveries, and drops duplicates.
func Example() {
	r, err := receive.New(receive.Config{Secrets: []string{secret}, Now: func() time.Time { return now }})
	if err != nil {
		log.Fatal(err)
	}
	hook := r.Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		fmt.Println("delivered:", req.Header.Get("Webhook-Id"))
	}))

	// A program serves it by http.Server; here a delivery is made without a network, twice.
	for range 2 {
		answer := deliver(hook, "01KD8EQ8R0V7M8Q1Z2X3C4V5B6", sign(secret, "01KD8EQ8R0V7M8Q1Z2X3C4V5B6", now, "{}"), now, "{}")
		fmt.Println(answer.Code)
	}
	fmt.Println(deliver(hook, "x", "v1,forged", now, "{}").Code)
	// Output:
	// delivered: 01KD8EQ8R0V7M8Q1Z2X3C4V5B6
	// 200
	// 200
	// 401
}
