package status

import (
	"encoding/json"
	"time"
)

// Heartbeat is a replica's report on itself to the others. A replica of another version may leave out fields.
type Heartbeat struct {
	Version string    `json:"version,omitempty"`
	Since   time.Time `json:"since"` // when it began
	Ready   bool      `json:"ready"`
	// Rate is the number of occurrences that it has fired per second lately.
	Rate float64 `json:"rate"`
	Counts
}

// Encode returns the heartbeat as it is stored.
func (h Heartbeat) Encode() []byte { return encode(h) }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte{} // there is no value that can't be encoded
	}
	return b
}

// DecodeHeartbeat is the inverse of [Heartbeat.Encode]; ok is false if there is no report.
func DecodeHeartbeat(b []byte) (h Heartbeat, ok bool) {
	return h, json.Unmarshal(b, &h) == nil
}
