package client

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time, which the API writes as a text such as "1h30m".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. Besides Go's units it reads d (24 hours) and w (7 days).
func (d *Duration) UnmarshalText(text []byte) error {
	rest, total := string(text), time.Duration(0)
	for rest != "" {
		n := strings.IndexAny(rest, "wd")
		if n < 0 {
			more, err := time.ParseDuration(rest)
			if err != nil {
				return err
			}
			total += more
			break
		}
		// Weeks and days are whole or decimal numbers before all smaller units.
		count, err := strconv.ParseFloat(rest[:n], 64)
		if err != nil {
			return fmt.Errorf("%q is no duration", text)
		}
		unit := 24 * time.Hour
		if rest[n] == 'w' {
			unit *= 7
		}
		total += time.Duration(count * float64(unit))
		rest = rest[n+1:]
	}
	*d = Duration(total)
	return nil
}

// String returns the duration in Go's form.
func (d Duration) String() string { return time.Duration(d).String() }

// Job is a job in the form of a submission. It has exactly one of Schedules, Delay, Crontab and Steps.
type Job struct {
	// Key names the job, uniquely in its tenant: 1 to 255 bytes of UTF-8 without control characters.
	Key string `json:"key,omitempty"`
	// Schedules are the instants at which to fire. They are kept to the millisecond, rounded up.
	Schedules []time.Time `json:"schedules,omitempty"`
	// Delay fires once, this time after the submission.
	Delay Duration `json:"delay,omitzero"`
	// Crontab fires again and again, such as "0 9 * * MON-FRI", "@daily", "@every 90s" or "H H(0-5) * * *".
	Crontab string `json:"crontab,omitempty"`
	// Steps are a sequence, for one receiver or for each of Subscribers.
	Steps []Step `json:"steps,omitempty"`
	// Subscribers is a number, or a list of texts, numbers and objects.
	Subscribers any `json:"subscribers,omitempty"`
	// Timezone is the IANA name of the zone of a crontab or of weekdays; empty for UTC.
	Timezone string `json:"timezone,omitempty"`
	// StartAt and EndAt bound a crontab; StartAt begins a sequence. The zero StartAt is the submission.
	StartAt time.Time `json:"startAt,omitzero"`
	EndAt   time.Time `json:"endAt,omitzero"`
	// Past is the treatment of instants that have passed: [PastFire], [PastSkip] or [PastReject]. Empty means that they
	// fire if the submission creates the job, and are skipped if it replaces one.
	Past string `json:"past,omitempty"`
	// Deadline is the time after its instant up to which an occurrence may be attempted; 0 for ever.
	Deadline Duration `json:"deadline,omitzero"`
	// Spread is the window over which the occurrences of many jobs at one instant are spread.
	Spread Duration `json:"spread,omitzero"`
	// CatchUp is which instants of a crontab fire late: "latest" (the default), "all" or "none".
	CatchUp string `json:"catchUp,omitempty"`
	// ExpectBy is the time after each instant within which a check-in is expected, see [Client.CheckIn]; 0 for none.
	ExpectBy Duration `json:"expectBy,omitzero"`
	// Priority is "high", "normal" or "low"; empty for the tenant's.
	Priority string `json:"priority,omitempty"`
	// Destination limits the callbacks to the destination.
	Destination *DestinationLimits `json:"destination,omitempty"`
	// Retry is the retry policy of failed occurrences; nil for the defaults.
	Retry *Retry `json:"retry,omitempty"`
	// Callback is the call to make.
	Callback Callback `json:"callback"`
}

// The treatments of instants that have passed.
const (
	PastFire   = "fire"
	PastSkip   = "skip"
	PastReject = "reject"
)

// Step is one step of a sequence, by its Type.
type Step struct {
	// Type is "job", "wait_certain_period", "wait_weekday" or "wait_specific_date".
	Type string `json:"type"`
	// Metadata is delivered by a job step instead of the callback's payload; nil means the callback's payload.
	Metadata any `json:"metadata,omitempty"`
	// Period and Unit are those of a wait_certain_period, such as 3 and "day".
	Period *float64 `json:"delay_period,omitempty"`
	Unit   string   `json:"delay_unit,omitempty"`
	// Weekdays are those of a wait_weekday, such as "monday".
	Weekdays []string `json:"weekdays,omitempty"`
	// Date is that of a wait_specific_date.
	Date time.Time `json:"date,omitzero"`
}

// DestinationLimits bound the callbacks that one replica sends to a destination. 0 is no limit.
type DestinationLimits struct {
	MaxInFlight   int     `json:"maxInFlight,omitempty"`
	RatePerSecond float64 `json:"ratePerSecond,omitempty"`
}

// Retry is a retry policy of failed occurrences. A zero field has its default: 100 attempts, 1s, 2 and 1h.
type Retry struct {
	MaxAttempts int      `json:"maxAttempts,omitempty"`
	Initial     Duration `json:"initial,omitzero"`
	Factor      float64  `json:"factor,omitempty"`
	Max         Duration `json:"max,omitzero"`
}

// Callback is the call to make, by its type. [HTTP], [RabbitMQ] and [Kafka] make one.
type Callback struct {
	Type string `json:"type"`
	// Data has the form that the type defines. In answers it is a [json.RawMessage].
	Data any `json:"data"`
	// Envelope is "cloudevents" or "cloudevents-binary"; empty for the payload as it is.
	Envelope string `json:"envelope,omitempty"`
	// Signing is the name of the secret that signs deliveries, or "none"; empty for the tenant's default.
	Signing string `json:"signing,omitempty"`
}

// UnmarshalJSON implements [json.Unmarshaler]. Data keeps its bytes.
func (c *Callback) UnmarshalJSON(b []byte) error {
	type shape Callback
	var raw json.RawMessage
	s := shape{Data: &raw}
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	s.Data = raw
	*c = Callback(s)
	return nil
}

// HTTPData is a request to a URL.
type HTTPData struct {
	// URL is absolute, http or https.
	URL string `json:"url"`
	// Method is POST, PUT or PATCH; empty for POST.
	Method string `json:"method,omitempty"`
	// Headers are further headers. A value is a text, or a [SecretReference].
	Headers map[string]any `json:"headers,omitempty"`
	// Payload is any JSON value; nil for an empty body. A [json.RawMessage] is delivered byte for byte.
	Payload any `json:"payload,omitempty"`
}

// SecretReference is a header whose value is a secret of the tenant, joined when the callback is sent.
type SecretReference struct {
	Secret string `json:"secret"`
	Prefix string `json:"prefix,omitempty"`
}

// HTTP returns the callback that requests a URL.
func HTTP(data HTTPData) Callback { return Callback{Type: "http", Data: data} }

// RabbitMQData is a message to a queue, or to an exchange.
type RabbitMQData struct {
	Queue      string         `json:"queue,omitempty"`
	Exchange   string         `json:"exchange,omitempty"`
	RoutingKey string         `json:"routingKey,omitempty"`
	Persistent *bool          `json:"persistent,omitempty"`
	Headers    map[string]any `json:"headers,omitempty"`
	Payload    any            `json:"payload,omitempty"`
}

// RabbitMQ returns the callback that publishes a message.
func RabbitMQ(data RabbitMQData) Callback { return Callback{Type: "rabbitmq", Data: data} }

// KafkaData is a record in a topic.
type KafkaData struct {
	Topic     string         `json:"topic"`
	Key       string         `json:"key,omitempty"`
	Partition *int           `json:"partition,omitempty"`
	Headers   map[string]any `json:"headers,omitempty"`
	Payload   any            `json:"payload,omitempty"`
}

// Kafka returns the callback that produces a record.
func Kafka(data KafkaData) Callback { return Callback{Type: "kafka", Data: data} }

// Accepted is the answer to a submission.
type Accepted struct {
	Key string `json:"key"`
	// Revision is the stamp of the schedule. Version is that of the whole job, for [IfVersion].
	Revision string `json:"revision"`
	Version  string `json:"version"`
	// State is "scheduled", "paused" or "finished".
	State string `json:"state"`
	// Occurrences are in the store to fire. Skipped ones had passed and will not fire.
	Occurrences int `json:"occurrences"`
	Skipped     int `json:"skipped"`
	// Settled is the number of occurrences that the replaced job had too and that were settled before. They do not fire
	// again.
	Settled int `json:"settled,omitempty"`
	Missed  int `json:"missed,omitempty"`
	// NextInstant is the earliest instant that will fire; zero if none will.
	NextInstant time.Time `json:"nextInstant,omitzero"`
	// InFlight is the number of the replaced job's occurrences that a replica held; nil if no job was replaced.
	InFlight *int `json:"inFlight,omitempty"`
	// Created is true if there was no job of the key.
	Created bool `json:"-"`
}

// JobView is a job as the service shows it.
type JobView struct {
	Job
	Revision  string    `json:"revision"`
	Version   string    `json:"version"`
	State     string    `json:"state"`
	PausedAt  time.Time `json:"pausedAt,omitzero"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
	// Missed counts occurrences that were dropped by deadline or catch-up. Outcomes is nil if the counts are not known.
	Missed      int          `json:"missed,omitempty"`
	Outcomes    *Outcomes    `json:"outcomes,omitempty"`
	LastOutcome *LastOutcome `json:"lastOutcome,omitempty"`
	NextInstant time.Time    `json:"nextInstant,omitzero"`
	// Pending is the number of occurrences of the key in the store.
	Pending int `json:"pending"`
	// Occurrences is the first page of the pending ones; [Client.Occurrences] has all.
	Occurrences []Occurrence `json:"occurrences"`
	// ETag stands for all that is shown, for [Client.JobIfChanged].
	ETag string `json:"-"`
}

// Outcomes counts the ended occurrences of a revision.
type Outcomes struct {
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Missed    int `json:"missed"`
}

// LastOutcome is the outcome of the latest instant without pending occurrences.
type LastOutcome struct {
	Outcome string    `json:"outcome"`
	Instant time.Time `json:"instant"`
	At      time.Time `json:"at,omitzero"`
	Error   string    `json:"error,omitempty"`
}

// Occurrence is one pending firing of a job.
type Occurrence struct {
	ID string `json:"id"`
	// DeliveryID is the id that every attempt has, by which receivers drop duplicates.
	DeliveryID string    `json:"deliveryId"`
	Timestamp  time.Time `json:"timestamp"`
	Step       *int      `json:"step,omitempty"`
	Subscriber string    `json:"subscriber,omitempty"`
	// State is "scheduled", "claimed" or "retrying".
	State       string    `json:"state"`
	DueAt       time.Time `json:"dueAt"`
	ScheduledAt time.Time `json:"scheduledAt,omitzero"`
	Attempt     int       `json:"attempt"`
	LastError   string    `json:"lastError,omitempty"`
}

// JobSummary is a job in a list.
type JobSummary struct {
	Key          string    `json:"key"`
	Revision     string    `json:"revision"`
	Version      string    `json:"version"`
	State        string    `json:"state"`
	NextInstant  time.Time `json:"nextInstant,omitzero"`
	CallbackType string    `json:"callbackType"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt"`
}

// Cancelled is the answer to a cancellation.
type Cancelled struct {
	// Jobs is the number of jobs that a cancel by prefix has cancelled.
	Jobs int `json:"jobs,omitempty"`
	// Cancelled occurrences never fire. InFlight ones were held by a replica: they may be delivered, and are never
	// retried.
	Cancelled int `json:"cancelled"`
	InFlight  int `json:"inFlight"`
	// CountsLost is true if the answer to an earlier attempt was lost, so that the counts are too small.
	CountsLost bool `json:"-"`
}

// Controlled is a job after a pause or a resumption.
type Controlled struct {
	Key      string    `json:"key"`
	Version  string    `json:"version"`
	State    string    `json:"state"`
	PausedAt time.Time `json:"pausedAt,omitzero"`
}

// Triggered is an occurrence that was added.
type Triggered struct {
	ID         string    `json:"id"`
	DeliveryID string    `json:"deliveryId"`
	Timestamp  time.Time `json:"timestamp"`
}

// CheckedIn is the result of a check-in.
type CheckedIn struct {
	Key string `json:"key"`
	// At is the instant that it was about; zero if none was expected.
	At time.Time `json:"at,omitzero"`
	// Cancelled reports that the check-in was expected, and came in time.
	Cancelled bool `json:"cancelled"`
}

// Preview has the next instants of a schedule.
type Preview struct {
	Timezone string     `json:"timezone"`
	Crontab  string     `json:"crontab,omitempty"`
	Items    []Upcoming `json:"items"`
	LeftOut  []LeftOut  `json:"leftOut"`
	Passed   int        `json:"passed,omitempty"`
}

// Upcoming is an instant of a preview.
type Upcoming struct {
	Timestamp   time.Time `json:"timestamp"`
	FiresAt     time.Time `json:"firesAt,omitzero"`
	Local       time.Time `json:"local"`
	Step        *int      `json:"step,omitempty"`
	Subscribers int       `json:"subscribers,omitempty"`
	Effect      string    `json:"effect,omitempty"`
	Note        string    `json:"note,omitempty"`
}

// LeftOut is a wall time that does not exist.
type LeftOut struct {
	Local string    `json:"local"`
	At    time.Time `json:"at"`
	Note  string    `json:"note"`
}

// HistoryEntry is an attempt, which has an Outcome, or a change of a job, which has a Change. The first entry of a
// history with gaps may have Incomplete alone.
type HistoryEntry struct {
	At          time.Time `json:"at,omitzero"`
	Key         string    `json:"key,omitempty"`
	Outcome     string    `json:"outcome,omitempty"`
	Change      string    `json:"change,omitempty"`
	DeliveryID  string    `json:"deliveryId,omitempty"`
	Timestamp   time.Time `json:"timestamp,omitzero"`
	Attempt     int       `json:"attempt,omitempty"`
	ClaimedAt   time.Time `json:"claimedAt,omitzero"`
	Duration    Duration  `json:"duration,omitzero"`
	Destination string    `json:"destination,omitempty"`
	Status      int       `json:"status,omitempty"`
	Error       string    `json:"error,omitempty"`
	NextAttempt time.Time `json:"nextAttempt,omitzero"`
	Replica     string    `json:"replica,omitempty"`
	TraceID     string    `json:"traceId,omitempty"`
	By          string    `json:"by,omitempty"`
	RequestID   string    `json:"requestId,omitempty"`
	Replaced    string    `json:"replaced,omitempty"`
	Fields      []string  `json:"fields,omitempty"`
	// Incomplete is true if entries between MissingFrom and MissingUntil were dropped.
	Incomplete   bool      `json:"incomplete,omitempty"`
	MissingFrom  time.Time `json:"missingFrom,omitzero"`
	MissingUntil time.Time `json:"missingUntil,omitzero"`
}

// Explanation says why an instant fired or did not, or why it waits. Its codes are those of docs/explain.md; later
// versions may have more.
type Explanation struct {
	Key    string `json:"key"`
	Tenant string `json:"tenant"`
	// At is the instant; zero if there is none. FiresAt is the time to which a spread moves it.
	At      time.Time `json:"at,omitzero"`
	FiresAt time.Time `json:"firesAt,omitzero"`
	// Code is that of the first fact, and Summary one sentence.
	Code    string            `json:"code"`
	Summary string            `json:"summary"`
	Facts   []ExplanationFact `json:"facts"`
	// Occurrence is the one that the first fact is about; nil if it is not in the store.
	Occurrence *ExplainedOccurrence `json:"occurrence,omitempty"`
	// Nearest are the instants of the schedule before and after the time.
	Nearest []time.Time `json:"nearest,omitempty"`
	AsOf    time.Time   `json:"asOf"`
}

// ExplainedOccurrence is the occurrence that an explanation is about. State is "pending", "held" or "dead".
type ExplainedOccurrence struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	Step       *int   `json:"step,omitempty"`
	Subscriber string `json:"subscriber,omitempty"`
	State      string `json:"state"`
}

// ExplanationFact is one reason. A field that does not apply is zero.
type ExplanationFact struct {
	Code        string    `json:"code"`
	Text        string    `json:"text"`
	At          time.Time `json:"at,omitzero"`
	Since       time.Time `json:"since,omitzero"`
	Until       time.Time `json:"until,omitzero"`
	Next        time.Time `json:"next,omitzero"`
	By          string    `json:"by,omitempty"`
	RequestID   string    `json:"requestId,omitempty"`
	Attempt     int       `json:"attempt,omitempty"`
	Status      int       `json:"status,omitempty"`
	Error       string    `json:"error,omitempty"`
	Destination string    `json:"destination,omitempty"`
	Replica     string    `json:"replica,omitempty"`
	Count       int       `json:"count,omitempty"`
}

// DeadLetter is an occurrence that was given up.
type DeadLetter struct {
	ID         string    `json:"id"`
	DeliveryID string    `json:"deliveryId"`
	Key        string    `json:"key"`
	Timestamp  time.Time `json:"timestamp"`
	Step       *int      `json:"step,omitempty"`
	Subscriber string    `json:"subscriber,omitempty"`
	FailedAt   time.Time `json:"failedAt"`
	Attempt    int       `json:"attempt"`
	Error      string    `json:"error"`
	Callback   Callback  `json:"callback"`
}

// Tenant is a tenant and its settings.
type Tenant struct {
	Name              string         `json:"name"`
	FirstSeen         time.Time      `json:"firstSeen"`
	EffectivePriority string         `json:"effectivePriority"`
	Settings          TenantSettings `json:"settings"`
}

// TenantSettings are the settings of a tenant. A zero field has its default.
type TenantSettings struct {
	Weight      float64 `json:"weight,omitempty"`
	Priority    string  `json:"priority,omitempty"`
	MaxInFlight int     `json:"maxInFlight,omitempty"`
	Paused      bool    `json:"paused,omitempty"`
	// Events has the settings of events about the tenant; nil for no events.
	Events *EventSettings `json:"events,omitempty"`
}

// EventSettings select the delivered events of a tenant, and their receiver.
type EventSettings struct {
	// Callback gets the events, as CloudEvents.
	Callback Callback `json:"callback"`
	// Types are those that are delivered, such as "carillon.deadletter.created"; none means all.
	Types []string `json:"types,omitempty"`
	// PerMinute is the maximum number of events that a replica makes in a minute, besides a summary of the others; 0 for
	// 60.
	PerMinute int `json:"perMinute,omitempty"`
}

// Limits are the limits of a tenant or a key. A nil field has the service's default, and 0 is no limit.
type Limits struct {
	RequestsPerSecond   *float64 `json:"requestsPerSecond,omitempty"`
	RequestBurst        *int     `json:"requestBurst,omitempty"`
	BatchBytesPerSecond *int     `json:"batchBytesPerSecond,omitempty"`
	MaxJobs             *int     `json:"maxJobs,omitempty"`
	MaxPending          *int     `json:"maxPending,omitempty"`
	MaxPayload          *int     `json:"maxPayload,omitempty"`
}

// TenantLimits are a tenant's own limits, and those that apply.
type TenantLimits struct {
	Tenant    string `json:"tenant"`
	Own       Limits `json:"own"`
	Effective Limits `json:"effective"`
}

// NewKey are the permissions of a new API key.
type NewKey struct {
	// Role is "viewer", "submitter", "operator" or "admin".
	Role string `json:"role"`
	// Tenants are their names, or "*" alone for all.
	Tenants   []string  `json:"tenants"`
	KeyPrefix string    `json:"keyPrefix,omitempty"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	Note      string    `json:"note,omitempty"`
	// Limits are its own; nil for those of every key.
	Limits *Limits `json:"limits,omitempty"`
}

// Key is an API key.
type Key struct {
	ID string `json:"id"`
	// Key is the secret, in the answers to [Client.CreateKey] and [Client.RotateKey] only.
	Key           string    `json:"key,omitempty"`
	Role          string    `json:"role"`
	Tenants       []string  `json:"tenants"`
	KeyPrefix     string    `json:"keyPrefix,omitempty"`
	Note          string    `json:"note,omitempty"`
	CreatedBy     string    `json:"createdBy"`
	CreatedAt     time.Time `json:"createdAt"`
	ExpiresAt     time.Time `json:"expiresAt,omitzero"`
	RotatedAt     time.Time `json:"rotatedAt,omitzero"`
	OldValidUntil time.Time `json:"oldValidUntil,omitzero"`
	LastUsed      time.Time `json:"lastUsed,omitzero"`
	// Limits are its own; nil if those of every key apply.
	Limits *Limits `json:"limits,omitempty"`
}

// Secret is a named secret, without its value.
type Secret struct {
	Name         string    `json:"name"`
	Destinations []string  `json:"destinations,omitempty"`
	CreatedAt    time.Time `json:"createdAt"`
	UpdatedAt    time.Time `json:"updatedAt"`
}

// NewSigningSecret is a signing secret to create.
type NewSigningSecret struct {
	Name string `json:"name"`
	// Secret is one that receivers have already; empty for a random one.
	Secret  string `json:"secret,omitempty"`
	Ed25519 bool   `json:"ed25519,omitempty"`
}

// SigningSecret is a secret that signs deliveries.
type SigningSecret struct {
	Name string `json:"name"`
	// Secret is in the answers to a creation and a rotation only.
	Secret    string              `json:"secret,omitempty"`
	CreatedAt time.Time           `json:"createdAt"`
	UpdatedAt time.Time           `json:"updatedAt"`
	Valid     []SigningGeneration `json:"valid"`
}

// SigningGeneration is a secret that is valid at the moment.
type SigningGeneration struct {
	Until     time.Time `json:"until,omitzero"`
	PublicKey string    `json:"publicKey,omitempty"`
}

// Backlog counts the pending occurrences.
type Backlog struct {
	At            time.Time            `json:"at"`
	Pending       int                  `json:"pending"`
	Due           int                  `json:"due"`
	AtLeast       bool                 `json:"atLeast,omitempty"`
	OldestDue     time.Time            `json:"oldestDue,omitzero"`
	DeadLetters   *int                 `json:"deadLetters,omitempty"`
	Replicas      int                  `json:"replicas,omitempty"`
	RatePerSecond float64              `json:"ratePerSecond,omitempty"`
	DrainSeconds  int                  `json:"drainSeconds,omitempty"`
	Priorities    []PriorityBacklog    `json:"priorities"`
	Tenants       []TenantBacklog      `json:"tenants"`
	Destinations  []DestinationBacklog `json:"destinations"`
}

// PriorityBacklog is the backlog of one priority.
type PriorityBacklog struct {
	Priority string `json:"priority"`
	Due      int    `json:"due"`
	Pending  int    `json:"pending"`
	AtLeast  bool   `json:"atLeast,omitempty"`
}

// TenantBacklog is the backlog of one tenant.
type TenantBacklog struct {
	Name      string    `json:"name"`
	Priority  string    `json:"priority"`
	Weight    float64   `json:"weight"`
	Paused    bool      `json:"paused"`
	OldestDue time.Time `json:"oldestDue,omitzero"`
	Due       int       `json:"due"`
	Pending   int       `json:"pending"`
	AtLeast   bool      `json:"atLeast,omitempty"`
}

// DestinationBacklog is the backlog of one destination.
type DestinationBacklog struct {
	Name      string    `json:"name"`
	Due       int       `json:"due"`
	Pending   int       `json:"pending"`
	AtLeast   bool      `json:"atLeast,omitempty"`
	Estimated bool      `json:"estimated,omitempty"`
	InFlight  int       `json:"inFlight,omitempty"`
	Parked    int       `json:"parked,omitempty"`
	Failures  int       `json:"failures,omitempty"`
	OpenSince time.Time `json:"openSince,omitzero"`
	Duration  Duration  `json:"duration,omitzero"`
}

// BatchResult is the result of one item of a batch.
type BatchResult struct {
	// Index is the item, counted from 0.
	Index int `json:"index"`
	// Accepted is the answer, if Err is nil.
	Accepted
	// Err is why the item was refused; an [*Error].
	Err error `json:"-"`
}

// Status is the state of the service. With a key that is not for all tenants, it has only AsOf and Objectives.
type Status struct {
	// Version is the version of the replica that answers, and Uptime the time since its start.
	Version  string    `json:"version,omitempty"`
	AsOf     time.Time `json:"asOf"`
	Uptime   Duration  `json:"uptime,omitzero"`
	Replicas []Replica `json:"replicas,omitempty"`
	// Lateness is the time from the instants of occurrences to their first firings.
	Lateness       Lateness           `json:"lateness,omitzero"`
	FiredPerSecond float64            `json:"firedPerSecond,omitempty"`
	Objectives     []Objective        `json:"objectives"`
	Destinations   []DestinationState `json:"destinations,omitempty"`
	Warnings       []string           `json:"warnings,omitempty"`
}

// Replica is a replica of the service.
type Replica struct {
	ID      string    `json:"id"`
	Version string    `json:"version,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Seen    time.Time `json:"seen"`
	// Ready is nil for a replica of an earlier version, which does not report it.
	Ready *bool `json:"ready,omitempty"`
}

// Lateness has quantiles over a window; zero if nothing was fired.
type Lateness struct {
	Window Duration `json:"window"`
	P50    Duration `json:"p50,omitzero"`
	P99    Duration `json:"p99,omitzero"`
	Max    Duration `json:"max,omitzero"`
	// Hours are the last 24 hours, the oldest first, and the present one last. Services of earlier versions have none.
	Hours []LatenessHour `json:"hours,omitempty"`
}

// LatenessHour is the lateness of the firings of one hour.
type LatenessHour struct {
	From  time.Time `json:"from"`
	Count int       `json:"count"`
	P50   Duration  `json:"p50,omitzero"`
	P99   Duration  `json:"p99,omitzero"`
	Max   Duration  `json:"max,omitzero"`
}

// Objective is a part of occurrences that is to be fired in time, and whether it is.
type Objective struct {
	// Tenant is empty if it is about all tenants together.
	Tenant string   `json:"tenant,omitempty"`
	Target float64  `json:"target"`
	Within Duration `json:"within"`
	// Met is the part that was in time in the last hour; nil if nothing was due.
	Met *float64 `json:"met,omitempty"`
	// BurnRate is the burn rate of the error budget in the last hour.
	BurnRate float64           `json:"burnRate"`
	Windows  []ObjectiveWindow `json:"windows"`
}

// ObjectiveWindow is an objective over one time.
type ObjectiveWindow struct {
	Window   Duration `json:"window"`
	Fired    int      `json:"fired"`
	Late     int      `json:"late"`
	BurnRate float64  `json:"burnRate"`
}

// DestinationState is a destination that the replica which answers knows.
type DestinationState struct {
	Destination string `json:"destination"`
	// State is "up", "down", or "partly down" if only parts of it are down, such as paths of a host.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	// PartsDown is the number of parts that are down, of one that is partly down.
	PartsDown int `json:"partsDown,omitempty"`
}

// Session describes the caller and its permissions.
type Session struct {
	// Authentication is "keys", or "none" for a service without keys.
	Authentication string `json:"authentication"`
	// ID is the id of the key, the subject of the token, or "anyone".
	ID          string   `json:"id"`
	Role        string   `json:"role"`
	Permissions []string `json:"permissions"`
	// Tenants are those that the caller may act for; "*" stands for all.
	Tenants   []string  `json:"tenants"`
	KeyPrefix string    `json:"keyPrefix,omitempty"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
}
