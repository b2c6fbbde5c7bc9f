package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// judgeNow evaluates a condition that MongoDB supports and FerretDB does not,
//
//	$expr: {$lte: ["$$NOW", <date>]}
//
// in the filter of an update, a delete or a findAndModify, by this machine's clock. If the condition holds, judgeNow
// removes it from the filter; if not, it makes the filter match nothing. It does not change a message without such a
// condition. As in MongoDB, the time is the same for all statements of a command.
func judgeNow(m message, now time.Time) (message, error) {
	if m.opcode() != opMsg || !bytes.Contains(m, []byte("$$NOW")) {
		return m, nil
	}
	const sections = headerLen + 4 // after the flags
	if len(m) < sections || binary.LittleEndian.Uint32(m[headerLen:])&flagChecksum != 0 {
		return nil, errors.New("a message with a checksum can't be changed")
	}
	judged := bytes.Clone(m[:sections])
	for rest := m[sections:]; len(rest) > 0; {
		if len(rest) < 5 {
			return nil, errShort
		}
		kind, length := rest[0], int(binary.LittleEndian.Uint32(rest[1:]))
		if length < 5 || length > len(rest)-1 {
			return nil, errShort
		}
		section := rest[1 : 1+length]
		var err error
		if kind == 0 {
			section, err = judgeCommand(section, now)
		} else {
			section, err = judgeSequence(section, now)
		}
		if err != nil {
			return nil, err
		}
		judged = append(append(judged, kind), section...)
		rest = rest[1+length:]
	}
	binary.LittleEndian.PutUint32(judged, uint32(len(judged)))
	return judged, nil
}

var errShort = errors.New("a section of the message is cut off")

// judgeCommand judges the filters in a command's own document: that of a findAndModify, and those of statements that
// are not sent as a sequence.
func judgeCommand(document []byte, now time.Time) ([]byte, error) {
	var command bson.D
	if err := bson.Unmarshal(document, &command); err != nil || len(command) == 0 {
		return document, err
	}
	for i, e := range command {
		switch e.Key {
		case "query":
			if filter, ok := e.Value.(bson.D); ok && command[0].Key == "findAndModify" {
				command[i].Value = judgeFilter(filter, now)
			}
		case "updates", "deletes":
			statements, _ := e.Value.(bson.A)
			for _, s := range statements {
				if statement, ok := s.(bson.D); ok {
					judgeStatement(statement, now)
				}
			}
		}
	}
	return bson.Marshal(command)
}

// judgeSequence judges the filters of the statements in a document sequence: its length, its name, and documents.
func judgeSequence(section []byte, now time.Time) ([]byte, error) {
	name, documents, ok := bytes.Cut(section[4:], []byte{0})
	if !ok {
		return nil, errShort
	}
	judged := append(append(make([]byte, 4, len(section)), name...), 0)
	for len(documents) > 0 {
		if len(documents) < 5 || int(binary.LittleEndian.Uint32(documents)) > len(documents) {
			return nil, errShort
		}
		length := binary.LittleEndian.Uint32(documents)
		document := documents[:length]
		if bytes.Contains(document, []byte("$$NOW")) {
			var statement bson.D
			if err := bson.Unmarshal(document, &statement); err != nil {
				return nil, err
			}
			judgeStatement(statement, now)
			var err error
			if document, err = bson.Marshal(statement); err != nil {
				return nil, err
			}
		}
		judged = append(judged, document...)
		documents = documents[length:]
	}
	binary.LittleEndian.PutUint32(judged, uint32(len(judged)))
	return judged, nil
}

// judgeStatement judges the filter of one statement of an update or a delete.
func judgeStatement(statement bson.D, now time.Time) {
	for i, e := range statement {
		if filter, ok := e.Value.(bson.D); ok && e.Key == "q" {
			statement[i].Value = judgeFilter(filter, now)
		}
	}
}

// judgeFilter returns the filter without its condition, or a filter that matches nothing.
func judgeFilter(filter bson.D, now time.Time) bson.D {
	for i, e := range filter {
		bound, ok := boundOf(e)
		if !ok {
			continue
		}
		if now.UnixMilli() > int64(bound) {
			return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{}}}}}
		}
		return append(append(bson.D{}, filter[:i]...), filter[i+1:]...)
	}
	return filter
}

// boundOf returns the date of the condition, if an element of a filter is that condition. FerretDB refuses any other
// use of $expr.
func boundOf(e bson.E) (bound bson.DateTime, ok bool) {
	expression, _ := e.Value.(bson.D)
	if e.Key != "$expr" || len(expression) != 1 || expression[0].Key != "$lte" {
		return 0, false
	}
	operands, _ := expression[0].Value.(bson.A)
	if len(operands) != 2 || operands[0] != "$$NOW" {
		return 0, false
	}
	bound, ok = operands[1].(bson.DateTime)
	return bound, ok
}
