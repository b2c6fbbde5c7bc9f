package model

// Rule is one rule of the protocol. The search can leave one out, and then finds a history in which a promise is
// broken.
type Rule int

// The rules.
const (
	InsertFirst Rule = iota + 1
	FlipGuarded
	FlipBounded
	OnlyTheReplaced
	PutNamesCursor
	StampGuarded
	JobsAfterStamp
	ReadBackByToken
	OrphansWait
	AgeAtClaim
	PutBackGuarded
	OrphansUnchanged
	HeirsFirst
	HeirsByAll
	LeaseBeforeSend
	SettleGuarded
	BuryInPlace
	JobDeletedFirst
	CancelGuarded
	OwnReadFirst
	OwnByRedrives
	TriggerReadsAgain
	TriggerByCreation
	UnstagedByCancel
	TicksStaged
	CursorCommits
	ExpansionGuarded
	ResumeWaits
	ResumesCaught
	ResumeLooksAgain
	AmendGuarded
	SweepGuarded
	CountsWhatChanged
	rules
)

// Rules are all rules.
func Rules() []Rule {
	all := make([]Rule, 0, rules-1)
	for r := Rule(1); r < rules; r++ {
		all = append(all, r)
	}
	return all
}

// about has each rule's name, its text, and a scenario in which a promise is broken without it.
var about = [rules]struct {
	name, text string
	scenario   Scenario
}{
	FlipGuarded: {
		"flip-guarded",
		"The flip matches only the version of the job that the put has read.",
		Scenario{Calls: []Kind{Put, Put}},
	},
	FlipBounded: {
		"flip-bounded",
		"The flip takes effect within the time of its request, by the store's clock, or never.",
		Scenario{Calls: []Kind{Put}},
	},
	OnlyTheReplaced: {
		"only-the-replaced",
		"A put deletes the occurrences of the revision that it replaced, not all but its own.",
		Scenario{Calls: []Kind{Put, Put}},
	},
	PutNamesCursor: {
		"put-names-cursor",
		"A put that replaces a recurring job matches only the cursor that it has read.",
		Scenario{Recurring: true, Calls: []Kind{ClaimAck, Expand, PutDrop}},
	},
	StampGuarded: {
		"stamp-guarded",
		"A claim stamps only those found occurrences that are still due.",
		Scenario{Calls: []Kind{ClaimAck, ClaimAck}},
	},
	JobsAfterStamp: {
		"jobs-after-stamp",
		"A claim reads the jobs of its occurrences after it has stamped them.",
		Scenario{Calls: []Kind{ClaimAck, PutDrop}},
	},
	ReadBackByToken: {
		"read-back-by-token",
		"A claim has only the occurrences that carry its own token.",
		Scenario{Calls: []Kind{ClaimAck, ClaimAck}},
	},
	OrphansWait: {
		"orphans-wait",
		"An orphan is put back until its put must be over, and only then deleted.",
		Scenario{Calls: []Kind{ClaimAck, Put}},
	},
	AgeAtClaim: {
		"age-at-claim",
		"The age of an orphan is its age at the time of the claim, not at the time of the deletion.",
		Scenario{Calls: []Kind{ClaimAck, Put}},
	},
	PutBackGuarded: {
		"put-back-guarded",
		"An occurrence is put back, or dropped, only while it carries the token of the claim.",
		Scenario{Recurring: true, Calls: []Kind{ClaimAck, ClaimAck, Expand}},
	},
	OrphansUnchanged: {
		"orphans-unchanged",
		"An orphan is dropped only if it was not carried over since it was read.",
		Scenario{Calls: []Kind{ClaimAck, Put}},
	},
	HeirsFirst: {
		"heirs-first",
		"A put rewrites the carried-over occurrences before it deletes the others of their revision.",
		Scenario{Calls: []Kind{Put}},
	},
	HeirsByAll: {
		"heirs-by-all",
		"Every change of a job first rewrites the occurrences that an interrupted put has carried over.",
		Scenario{Calls: []Kind{Put, Put}},
	},
	LeaseBeforeSend: {
		"lease-before-send",
		"A replica checks right before sending that its lease has not ended.",
		Scenario{Calls: []Kind{ClaimAck}},
	},
	SettleGuarded: {
		"settle-guarded",
		"A settlement changes only an occurrence that carries the token of its claim.",
		Scenario{Calls: []Kind{ClaimAck, ClaimAck, ClaimAck}},
	},
	BuryInPlace: {
		"bury-in-place",
		"An occurrence becomes a dead letter by one write in place, not by a copy and a deletion.",
		Scenario{Calls: []Kind{ClaimBury}},
	},
	JobDeletedFirst: {
		"job-deleted-first",
		"A cancellation deletes the job before it counts and deletes the occurrences.",
		Scenario{Calls: []Kind{Cancel}},
	},
	CancelGuarded: {
		"cancel-guarded",
		"A cancellation deletes only the version of the job that it has read, and reads again if that has changed.",
		Scenario{Calls: []Kind{CancelIf, Amend}},
	},
	OwnReadFirst: {
		"own-read-first",
		"A cancellation reads the occurrences that stand on their own before it deletes any other.",
		Scenario{Calls: []Kind{ClaimBury, Cancel, Redrive}},
	},
	OwnByRedrives: {
		"own-by-redrives",
		"It deletes these by the number of redrives that it has read.",
		Scenario{Dead: true, Calls: []Kind{ClaimBury, Cancel, Redrive, Redrive}},
	},
	TriggerReadsAgain: {
		"trigger-reads-again",
		"A trigger reads the job again between staging its occurrence and unveiling it.",
		Scenario{Calls: []Kind{Cancel, Trigger}},
	},
	TriggerByCreation: {
		"trigger-by-creation",
		"A trigger compares the job's creation time, since another job may have the key by then.",
		Scenario{Calls: []Kind{Put, Cancel, Trigger}},
	},
	UnstagedByCancel: {
		"unstaged-by-cancel",
		"A cancellation deletes staged occurrences of its key.",
		Scenario{Calls: []Kind{Cancel, Trigger}},
	},
	TicksStaged: {
		"ticks-staged",
		"An expansion stages its occurrences, and unveils them by a bounded write.",
		Scenario{Recurring: true, Calls: []Kind{ClaimAck, Expand, Expand}},
	},
	CursorCommits: {
		"cursor-commits",
		"An occurrence beyond its job's cursor is put back.",
		Scenario{Recurring: true, Calls: []Kind{ClaimAck, Expand}},
	},
	ExpansionGuarded: {
		"expansion-guarded",
		"The cursor moves only if revision, cursor and token are those of the expansion.",
		Scenario{Recurring: true, Calls: []Kind{Expand, Expand}},
	},
	ResumeWaits: {
		"resume-waits",
		"A resumed job is not expanded before an expansion that its pause has cut off can't insert any more.",
		Scenario{Recurring: true, Delivered: true, Calls: []Kind{ClaimOne, Expand, Expand, Pause, Resume}},
	},
	ResumesCaught: {
		"resumes-caught",
		"A claim that has put back occurrences of a paused job reads the job again.",
		Scenario{Calls: []Kind{ClaimAck, Pause, Resume}},
	},
	ResumeLooksAgain: {
		"resume-looks-again",
		"A resume that has brought occurrences forward reads the job again, since they may have been carried over.",
		Scenario{Paused: true, Calls: []Kind{Put, Resume}},
	},
	AmendGuarded: {
		"amend-guarded",
		"A patch matches only the version of the job that it was made for.",
		Scenario{Calls: []Kind{Amend, Amend}},
	},
	SweepGuarded: {
		"sweep-guarded",
		"A sweep deletes only the version of the job that it found to have finished.",
		Scenario{Calls: []Kind{ClaimAck, Put, Sweep}},
	},
	CountsWhatChanged: {
		"counts-what-changed",
		"A settlement that has not ended all occurrences reads again which ones it has, and counts those.",
		Scenario{Calls: []Kind{ClaimMiss, ClaimAck}},
	},
	InsertFirst: {
		"insert-first",
		"A put inserts its occurrences before it flips the job to their revision.",
		Scenario{Calls: []Kind{Put}},
	},
}

// String is the rule's name.
func (r Rule) String() string { return about[r].name }

// Text is the rule as a sentence.
func (r Rule) Text() string { return about[r].text }

// Scenario returns a scenario in which a promise is broken without the rule.
func (r Rule) Scenario() Scenario { return about[r].scenario }
